package driver_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

// fifo is where a driver of a test says that it has begun: it opens the pipe, and holds it as
// long as it or a child of it lives. begun waits for the first, ended for the second.
func fifo(t *testing.T) (path string, begun, ended func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { first.Close() })
	begun = func() {
		if file, err := os.Open(path); err != nil {
			t.Error(err)
		} else {
			file.Close()
		}
	}
	return path, begun, func() {
		t.Helper()
		if n, err := first.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
			t.Errorf("%d bytes were read, %v", n, err)
		}
	}
}

// A driver that hangs is killed with its children when its time is over, or the caller's, and
// nothing of it is left.
func TestADriverThatHangs(t *testing.T) {
	for _, limited := range []bool{true, false} {
		pipe, begun, ended := fifo(t)
		d := drivers(t, `test $1 = init && echo '{"status":"Success"}' && exit; exec 3>"$2"; sleep 600 & sleep 600`)
		found := mustOpen(t, d)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("the agent stops")
		if limited {
			d.Timeout, cause = 200*time.Millisecond, context.DeadlineExceeded
		}
		if !limited {
			go func() {
				begun()
				cancel(cause)
			}()
		}
		_, err := found.Call(ctx, driver.Call{Verb: "hang", Args: []string{pipe}})
		if !errors.Is(err, cause) || !errors.Is(err, driver.ErrFailed) || !volume.IsUncertain(err) {
			t.Errorf("limited %v: %v", limited, err)
		}
		ended() // returns once all writers are gone
		cancel(nil)
		d.Timeout = time.Minute
		if _, err := found.Call(t.Context(), driver.Call{Verb: "init"}); err != nil { // of the same key, after the killed one is reaped
			t.Error(err)
		}
		var info unix.Siginfo
		if err := eintr.Do(func() error { return unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) }); err != nil && !errors.Is(err, unix.ECHILD) || info.Signo != 0 {
			t.Errorf("a zombie is left: %v, %+v", err, info)
		}
	}
}

// A daemon outlives its driver's success, and may keep the output open.
func TestADaemonLivesOn(t *testing.T) {
	pipe, begun, ended := fifo(t)
	d := drivers(t, `test $1 = init || { exec 3>"$2"; sleep 600 & echo $! >"$2.pid"; }; echo '{"status":"Success"}'`)
	found := mustOpen(t, d)
	opened := make(chan struct{})
	go func() { begun(); close(opened) }()
	if _, err := found.Call(t.Context(), driver.Call{Verb: "mount", Args: []string{pipe}}); err != nil {
		t.Fatal(err)
	}
	<-opened
	text, err := os.ReadFile(pipe + ".pid")
	if err != nil {
		t.Fatal(err)
	}
	pid := 0
	for _, c := range strings.TrimSpace(string(text)) {
		pid = 10*pid + int(c-'0')
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Errorf("the daemon is gone: %v", err)
	}
	ended()
}

// Of an output without end only the first part is kept, and it is no answer.
func TestOutputWithoutEnd(t *testing.T) {
	d := drivers(t, `test $1 = init && echo '{"status":"Success"}' && exit; head -c 50000000 /dev/zero; head -c 50000000 /dev/zero >&2`)
	_, err := mustOpen(t, d).Call(t.Context(), driver.Call{Verb: "mount"})
	if !errors.Is(err, driver.ErrFailed) || !strings.Contains(err.Error(), "longer than 65536 bytes") || len(err.Error()) > 2000 {
		t.Errorf("%.500v", err)
	}
	out, err := driver.Run(t.Context(), "/bin/sh", []string{"-c", "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2"})
	if err != nil || len(out.Stdout) != 64<<10+1 || len(out.Stderr) != 64<<10+1 {
		t.Errorf("%d and %d bytes are kept, %v", len(out.Stdout), len(out.Stderr), err)
	}
}

// A program that the kernel cannot start has done nothing.
func TestAProgramThatIsNone(t *testing.T) {
	d := drivers(t, "")
	if err := os.WriteFile(driver.Program(d.Dir, name), []byte("\x7fELF, but for no machine"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := d.Open(t.Context(), name)
	if !errors.Is(err, unix.ENOEXEC) || !errors.Is(err, driver.ErrFailed) || volume.IsUncertain(err) {
		t.Errorf("Open: %v", err)
	}
}
