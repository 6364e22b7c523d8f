package program_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/podvol/podvol/util/program"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	write := func(path string, mode os.FileMode) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, mode)); err != nil {
			t.Fatal(err)
		}
	}
	write("first/no", 0o644)
	write("first/mkfs", 0o755)
	write("second/mkfs", 0o755)
	write("second/no/file", 0o755)
	write("second/iscsiadm", 0o755)
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	for name, want := range map[string]string{"mkfs": filepath.Join(first, "mkfs"), "iscsiadm": filepath.Join(second, "iscsiadm")} {
		got, err := program.Find([]string{"relative", loop, filepath.Join(first, "no"), first, second}, name)
		if err != nil || got != want {
			t.Errorf("%s is at %s, %v; want %s", name, got, err, want)
		}
	}
	_, err := program.Find([]string{filepath.Join(first, "no"), first, second}, "no") // a file that does not run, a directory
	if !errors.Is(err, exec.ErrNotFound) || !strings.HasPrefix(err.Error(), "no: ") {
		t.Errorf("a program that is not there: %v", err)
	}
	_, err = program.Find([]string{loop, first}, "no")
	if !errors.Is(err, syscall.ELOOP) || errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a program that may be there: %v", err)
	}
	t.Setenv("PATH", second)
	if got, err := program.Find(nil, "iscsiadm"); err != nil || got != filepath.Join(second, "iscsiadm") {
		t.Errorf("by PATH: %s, %v", got, err)
	}
}
