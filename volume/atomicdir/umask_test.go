//go:build linux

package atomicdir

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/rerun"
)

// What a child of runAsOrdinaryUser gets.
const (
	ordinaryDirVar = "PODVOL_ATOMICDIR_ORDINARY_DIR"
	umaskVar       = "PODVOL_ATOMICDIR_UMASK"
)

// runAsOrdinaryUser runs the calling test again, in a process of a user without privileges,
// with a directory of that user.
func runAsOrdinaryUser(t *testing.T, dir string, umask int) {
	t.Helper()
	ctx, stop := rerun.Context(t)
	defer stop()
	child := exec.CommandContext(ctx, "/proc/self/exe", rerun.Args(t)...)
	child.Env = append(os.Environ(), ordinaryDirVar+"="+dir, umaskVar+"="+strconv.Itoa(umask))
	child.Dir = "/"
	if os.Geteuid() == 0 {
		child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinaryUser, Gid: ordinaryUser}}
	}
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("umask %04o: %v\n%s", umask, err, out)
	}
}

// A umask that takes the owner's own permissions away stops no ordinary user: modes are exact,
// and setgid is passed on.
func TestUmaskOfTheOwner(t *testing.T) {
	if dir := os.Getenv(ordinaryDirVar); dir != "" {
		publishUnderUmask(t, dir)
		return
	}
	for _, umask := range []int{0o777, 0o700, 0o500, 0o300, 0o077, 0} {
		dir := openToAll(t)
		if err := os.Chmod(dir, 0o755|os.ModeSetgid); err != nil {
			t.Fatal(err)
		}
		runAsOrdinaryUser(t, dir, umask)
		wantVisible(t, dir, map[string]string{"a": "2", "n/b": "2"})
		wantTidy(t, dir, 2)
		for name, want := range map[string]os.FileMode{
			"..data/.": os.ModeDir | os.ModeSetgid | 0o755, "..data/n": os.ModeDir | os.ModeSetgid | 0o755, "a": 0o644, "n/b": 0o644,
		} {
			if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
				t.Errorf("umask %04o: %s has mode %v, want %v; %v", umask, name, info.Mode(), want, err)
			}
		}
	}
}

func publishUnderUmask(t *testing.T, dir string) {
	umask, err := strconv.Atoi(os.Getenv(umaskVar))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Umask(unix.Umask(umask))
	var p Publisher
	for n := range 3 {
		mustPublish(t, &p, dir, text(map[string]string{"a": fmt.Sprint(n), "n/b": "2"}))
	}
}

// A directory that was made and cannot be opened does not stay.
func TestNewDirectoryThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	var p Publisher
	mustPublish(t, &p, dir, text(map[string]string{"a": "0"}))
	var all unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &all); err != nil {
		t.Fatal(err)
	}
	p.beforeStep = func(op, _ string) error {
		if op == "make version" { // at the very mkdir: no descriptor is left
			return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: all.Max})
		}
		return nil
	}
	_, err := p.Publish(t.Context(), dir, text(map[string]string{"a": "1"}))
	if restoreErr := unix.Setrlimit(unix.RLIMIT_NOFILE, &all); restoreErr != nil {
		t.Fatal(restoreErr)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Fatalf("err = %v, want EMFILE", err)
	}
	wantVisible(t, dir, map[string]string{"a": "0"})
	wantTidy(t, dir, 1)
	if got := len(versions(t, dir)); got != 1 {
		t.Errorf("%d versions are left", got)
	}
}
