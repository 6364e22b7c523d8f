package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/retry"
)

// callVar is in the environment of the programs that a call about a directory has started: the
// agent's session and process, the verb and the directory. It tells the children of a driver that
// was killed with its agent.
const callVar = "PODVOL_FLEXVOLUME_CALL="

// mark is the variable of a call by the agent of a session and process; empty: the call is about
// no directory.
func mark(session, agent int, args []string) string {
	if len(args) < 2 || !strings.HasPrefix(args[1], "/") {
		return ""
	}
	return fmt.Sprintf("%s%d %d %s", callVar, session, agent, about(args[0], args[1]))
}

func about(verb, dir string) string { return verb + " " + dir }

// EndLeft kills what another agent's call about a directory has left running, such as the mount(8)
// of a driver that was killed with it, and returns once there is nothing. A daemon, which has a
// session of its own, lives on: other volumes may need it. So does what a call of this process has
// left, since that call has ended. The error is the end of ctx.
func EndLeft(ctx context.Context, verb, dir string) error {
	pause := retry.Pause{First: time.Millisecond, Last: 100 * time.Millisecond}
	for killLeft(about(verb, dir)) {
		if !pause.Wait(ctx) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// killLeft reports whether there was a process of the call to kill. One that cannot be looked at
// is another user's.
func killLeft(call string) (found bool) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && pid != os.Getpid() {
			found = killIfOf(call, pid) || found
		}
	}
	return found
}

// killIfOf kills a process if the call has started it and it is no daemon. The descriptor keeps
// the number from becoming another process.
func killIfOf(call string, pid int) bool {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false // it has ended
	}
	defer unix.Close(fd)
	environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	session, err := unix.Getsid(pid)
	if err != nil || !hasMark(string(environ), session, call) {
		return false
	}
	return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// hasMark reports whether an environment is of a call by another agent in a session.
func hasMark(environ string, session int, call string) bool {
	for variable := range strings.SplitSeq(environ, "\x00") {
		of, isMark := strings.CutPrefix(variable, fmt.Sprintf("%s%d ", callVar, session))
		agent, rest, _ := strings.Cut(of, " ")
		if isMark && rest == call && agent != strconv.Itoa(os.Getpid()) {
			return true
		}
	}
	return false
}
