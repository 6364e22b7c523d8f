//go:build linux

package atomicdir

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/testenv/rerun"
)

// lockChildVar has the directory for the child of TestPublicationsOfTwoProcesses.
const lockChildVar = "PODVOL_ATOMICDIR_LOCK_DIR"

// Before any step of a publication, another Publisher finds it under way and changes nothing,
// and the first one completes.
func TestPublicationsOfTwoPublishers(t *testing.T) {
	dir := t.TempDir()
	var steps atomic.Int64
	first := Publisher{beforeStep: func(string, string) error {
		steps.Add(1)
		changed, err := new(Publisher).Publish(t.Context(), dir, text(map[string]string{"a": "second"}))
		wantBusy(t, dir, changed, err)
		return nil
	}}
	for _, set := range []map[string]string{{"a": "0", "goes": "0"}, {"a": "1", "comes": "1"}, {"a": "2"}} {
		mustPublish(t, &first, dir, text(set))
		wantVisible(t, dir, set)
		wantTidy(t, dir, len(set))
	}
	if steps.Load() < 10 {
		t.Errorf("%d steps only", steps.Load())
	}
	mustPublish(t, new(Publisher), dir, text(map[string]string{"a": "second"}))
	wantVisible(t, dir, map[string]string{"a": "second"})
}

func wantBusy(t *testing.T, dir string, changed bool, err error) {
	t.Helper()
	if !errors.Is(err, ErrBusy) || changed || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "try again") {
		t.Errorf("changed %v, err = %v, want ErrBusy and what to do", changed, err)
	}
	if failure, ok := errors.AsType[*Error](err); !ok || failure.Published {
		t.Errorf("err = %#v", err)
	}
}

func TestPublicationsOfTwoProcesses(t *testing.T) {
	if dir := os.Getenv(lockChildVar); dir != "" {
		changed, err := new(Publisher).Publish(t.Context(), dir, text(map[string]string{"a": "child"}))
		wantBusy(t, dir, changed, err)
		return
	}
	dir := t.TempDir()
	ran := false
	p := Publisher{beforeStep: func(op, name string) error {
		if op != "replace" || name != dataName {
			return nil
		}
		ran = true
		ctx, stop := rerun.Context(t)
		defer stop()
		child := exec.CommandContext(ctx, os.Args[0], rerun.Args(t)...)
		child.Env = append(os.Environ(), lockChildVar+"="+dir)
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return nil
	}}
	mustPublish(t, &p, dir, text(map[string]string{"a": "parent"}))
	wantVisible(t, dir, map[string]string{"a": "parent"})
	if !ran {
		t.Error("no child was started")
	}
}

// The lock ends with the publication, also for a copy of its descriptor: a child process has
// one while it is being started.
func TestLockEndsWithThePublication(t *testing.T) {
	dir := t.TempDir()
	opened, err := openTarget(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.close()
	var copied int
	unlock, err := opened.lock(func(fd, how int) error {
		if how&unix.LOCK_EX != 0 {
			if copied, err = unix.Dup(fd); err != nil {
				t.Fatal(err)
			}
		}
		return eintr.Do(func() error { return unix.Flock(fd, how) })
	})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(copied)
	other, err := openTarget(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	if _, err := other.lock(unix.Flock); !errors.Is(err, ErrBusy) {
		t.Errorf("err = %v, want ErrBusy", err)
	}
	unlock()
	if unlock, err = other.lock(unix.Flock); err != nil {
		t.Fatal(err)
	}
	unlock()
}

// A file system without locks is used without; any other failure is one.
func TestFileSystemWithoutLocks(t *testing.T) {
	opened, err := openTarget(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.close()
	for errno, want := range map[syscall.Errno]error{
		unix.EOPNOTSUPP: nil, unix.ENOSYS: nil, unix.ENOLCK: nil, unix.EINVAL: nil,
		unix.EWOULDBLOCK: ErrBusy, unix.EIO: unix.EIO, unix.EBADF: unix.EBADF,
	} {
		unlock, err := opened.lock(func(int, int) error { return errno })
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%v: err = %v, want %v", errno, err, want)
		}
		if err == nil {
			unlock()
		}
	}
}

// A reader that holds a lock keeps a Publisher out, but not one that owns the directory.
func TestASolePublisherTakesNoLock(t *testing.T) {
	dir := t.TempDir()
	reader, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := eintr.Do(func() error { return unix.Flock(int(reader.Fd()), unix.LOCK_SH|unix.LOCK_NB) }); err != nil {
		t.Fatal(err)
	}
	changed, err := new(Publisher).Publish(t.Context(), dir, text(map[string]string{"a": "1"}))
	wantBusy(t, dir, changed, err)
	sole := Publisher{Sole: true}
	for _, content := range []string{"1", "2"} {
		set := map[string]string{"a": content}
		mustPublish(t, &sole, dir, text(set))
		wantVisible(t, dir, set)
	}
}
