package journal

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/durable"
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
