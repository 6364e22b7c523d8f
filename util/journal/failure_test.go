package journal

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/testenv/nstest"
)

var errDisk = errors.New("input/output error")

func keysIn(t *testing.T, path string) string {
	t.Helper()
	held, damaged, err := Read(path)
	if err != nil || len(damaged) > 0 {
		t.Fatal(err, damaged)
	}
	var keys []string
	for _, e := range held {
		keys = append(keys, e.Key)
	}
	return strings.Join(keys, " ")
}

func openForFailure(t *testing.T) (*Journal, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "j")
	j, _, _, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j, path
}

// A compaction that fails costs no change, however far it came.
func TestFailedCompaction(t *testing.T) {
	for name, replace := range map[string]func(string, []byte) error{
		"before the replacement": func(path string, _ []byte) error {
			return &durable.Error{Op: "write", Path: path, Err: errDisk}
		},
		"after the replacement": func(path string, data []byte) error {
			if err := durable.WriteFile(path, data, 0o600); err != nil {
				return err
			}
			return &durable.Error{Op: "write", Path: path, Replaced: true, Err: errDisk}
		},
	} {
		t.Run(name, func(t *testing.T) {
			j, path := openForFailure(t)
			j.replace = replace
			j.compact = 0 // the next change compacts
			if err := j.Put("a", json.RawMessage("1")); err != nil {
				t.Fatal(err)
			}
			j.replace = replaceFile
			if err := j.Put("b", json.RawMessage("2")); err != nil {
				t.Fatal(err)
			}
			if got := keysIn(t, path); got != "a b" {
				t.Errorf("the file holds %q", got)
			}
		})
	}
}

// A failed write fails its own change only: the next one puts the file right.
func TestFailedWriteIsRepaired(t *testing.T) {
	j, path := openForFailure(t)
	if err := j.Put("a", json.RawMessage("1")); err != nil {
		t.Fatal(err)
	}
	readOnly, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	j.file.Close()
	j.file = readOnly
	if err := j.Put("b", json.RawMessage("2")); err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("err = %v", err)
	}
	j.replace = func(string, []byte) error { return errDisk }
	if err := j.Put("c", json.RawMessage("3")); !errors.Is(err, errDisk) {
		t.Fatalf("err = %v, want the repair's", err)
	}
	j.replace = replaceFile
	for _, key := range []string{"d", "e"} {
		if err := j.Put(key, json.RawMessage("4")); err != nil {
			t.Fatal(err)
		}
	}
	if got := keysIn(t, path); got != "a d e" {
		t.Errorf("the file holds %q", got)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Put("f", json.RawMessage("5")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Changes are synced before they return, notes are not; a sync that fails
// fails its change.
func TestSync(t *testing.T) {
	j, path := openForFailure(t)
	syncs := 0
	j.flush = func(*os.File) error { syncs++; return nil }
	for name, change := range map[string]func() error{
		"put":    func() error { return j.Put("a", json.RawMessage("1")) },
		"delete": func() error { return j.Delete("b") },
	} {
		syncs = 0
		if err := change(); err != nil || syncs != 1 {
			t.Errorf("%s: %d syncs, %v", name, syncs, err)
		}
	}
	syncs = 0
	if err := j.Note("a", json.RawMessage("2")); err != nil || syncs != 0 {
		t.Errorf("note: %d syncs, %v", syncs, err)
	}
	j.flush = func(*os.File) error { return errDisk }
	if err := j.Put("a", json.RawMessage("3")); !errors.Is(err, errDisk) {
		t.Errorf("err = %v", err)
	}
	j.flush = fdatasync
	if err := j.Put("c", json.RawMessage("4")); err != nil {
		t.Error(err)
	}
	if got := keysIn(t, path); got != "a c" {
		t.Errorf("the file holds %q", got)
	}
}

// On a full disk what is there can be opened and, within what is allocated,
// changed: a tear-down may be what makes room.
func TestFullDisk(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "j")
		j, _, _, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Put("a", json.RawMessage("1")); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("the disk is not full: %v", err)
		}
		j, held, _, err := Open(path)
		if err != nil || len(held) != 1 {
			t.Fatalf("held %v, %v", held, err)
		}
		defer j.Close()
		if err := j.Delete("a"); err != nil {
			t.Errorf("delete on a full disk: %v", err)
		}
		big := json.RawMessage(`"` + strings.Repeat("x", 400<<10) + `"`)
		if err := j.Put("b", big); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("put on a full disk: %v", err)
		}
		if err := os.Remove(filepath.Join(dir, "fill")); err != nil {
			t.Fatal(err)
		}
		if err := j.Put("c", json.RawMessage("2")); err != nil {
			t.Errorf("after room was made: %v", err)
		}
		if got := keysIn(t, path); got != "c" {
			t.Errorf("the file holds %q", got)
		}
	})
}
