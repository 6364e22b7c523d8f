package driver

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/retry"
)

// callVar is in the environment of the programs that a call about a directory has started. It
// tells the children of a driver that was killed with its agent.
const callVar = "PODVOL_FLEXVOLUME_CALL="

// mark is the variable of a call; empty: the call is about no directory.
func mark(args []string) string {
	if len(args) < 2 || !strings.HasPrefix(args[1], "/") {
		return ""
	}
	return callVar + args[0] + " " + args[1]
}

// EndLeft kills what an interrupted call about a directory has left running, such as the mount(8)
// of a driver that was killed, and returns once there is nothing. The error is the end of ctx.
func EndLeft(ctx context.Context, verb, dir string) error {
	want := []byte(mark([]string{verb, dir}))
	pause := retry.Pause{First: time.Millisecond, Last: 100 * time.Millisecond}
	for killMarked(want) {
		if !pause.Wait(ctx) {
			return context.Cause(ctx)
		}
	}
	return nil
}

// killMarked reports whether there was a process to kill. One that cannot be looked at is another
// user's.
func killMarked(want []byte) (found bool) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range all {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || pid == os.Getpid() {
			continue
		}
		environ, _ := os.ReadFile(file)
		for variable := range bytes.SplitSeq(environ, []byte{0}) {
			if bytes.Equal(variable, want) {
				found = true
				_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
			}
		}
	}
	return found
}
