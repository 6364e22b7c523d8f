package sandbox_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// probeName is the first argument by which this test binary is the program in
// the sandbox.
const probeName = "sandbox-probe"

// seen is what the program says about itself.
type seen struct {
	Mounts   []*mountinfo.Info
	UID, GID int
	Groups   []int
	Dir      string
	PID      int
	Env      []string
	Status   map[string]string // of /proc/self/status
	Results  []string          // one for each thing it was told to do
}

// probe does what its arguments say and prints what it sees.
func probe(args []string) int {
	s := seen{UID: os.Getuid(), GID: os.Getgid(), PID: os.Getpid(), Env: os.Environ()}
	s.Groups, _ = os.Getgroups()
	s.Dir, _ = os.Getwd()
	var err error
	if s.Mounts, err = mountinfo.GetMounts(nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 99
	}
	s.Status = status()
	for _, arg := range args {
		verb, what, _ := strings.Cut(arg, ":")
		switch verb {
		case "exit":
			var code int
			fmt.Sscan(what, &code)
			return code
		case "die":
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		case "hang":
			fmt.Println("ready")
			time.Sleep(time.Hour) // without cgo, the runtime ends a program of which no goroutine can go on
		case "wait": // until its standard input ends
			fmt.Println("ready")
			_, _ = io.Copy(io.Discard, os.Stdin)
			continue
		case "await":
			c := make(chan os.Signal, 1)
			signal.Notify(c, syscall.SIGTERM)
			fmt.Println("ready")
			<-c
			return 42
		}
		s.Results = append(s.Results, act(verb, what))
	}
	if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
		return 98
	}
	return 0
}

// act does one thing and says how it went.
func act(verb, what string) string {
	switch verb {
	case "read":
		content, err := os.ReadFile(what)
		return outcome(string(content), err)
	case "write":
		return outcome("written", os.WriteFile(what, []byte("by the program"), 0o644))
	case "mkdir":
		return outcome("made", os.Mkdir(what, 0o755))
	case "list":
		entries, err := os.ReadDir(what)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return outcome(strings.Join(names, " "), err)
	case "stat":
		var st unix.Stat_t
		err := unix.Lstat(what, &st)
		return outcome(fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid), err)
	case "inherited": // descriptors that execve(2) did not close, as seen by their flag
		return inherited()
	case "hex":
		return fmt.Sprintf("%x", os.Getenv(what))
	case "link":
		target, err := os.Readlink(what)
		return outcome(target, err)
	case "mount":
		return outcome("mounted", unix.Mount("by-the-program", what, "tmpfs", 0, "size=64k"))
	}
	return "what is " + verb + "?"
}

// inherited lists open files that this process did not open: what Go opens is
// closed on exec.
func inherited() string {
	var all []string
	for fd := range 1024 {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			all = append(all, fmt.Sprint(fd))
		}
	}
	return strings.Join(all, " ")
}

func outcome(result string, err error) string {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return unix.ErrnoName(errno)
	}
	if err != nil {
		return err.Error()
	}
	return result
}

func status() map[string]string {
	content, _ := os.ReadFile("/proc/self/status")
	fields := map[string]string{}
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields
}

// at returns the topmost mount at a path.
func (s seen) at(path string) *mountinfo.Info {
	var top *mountinfo.Info
	for _, m := range s.Mounts {
		if m.Mountpoint == filepath.Clean(path) {
			top = m
		}
	}
	return top
}

// lines is what a program has printed.
type lines struct{ bytes.Buffer }

func (l *lines) results(t *testing.T) []string {
	t.Helper()
	var s seen
	if err := json.Unmarshal(l.Bytes(), &s); err != nil {
		t.Fatalf("the program says %q: %v", l.String(), err)
	}
	return s.Results
}
