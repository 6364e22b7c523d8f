package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// smallDisk is an empty file system of a mebibyte with so many KiB that are free.
func smallDisk(t *testing.T, free int) (path string) {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "fill"), make([]byte, (1024-free)<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "j")
}

// However little room a disk has, each entry that was put there can be moved and
// deleted, also by the next process, and while others are still being refused.
func TestWhatWasPutCanGoOnAFullDisk(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, size := range []int{10, 5000} {
			for free := 16; free <= 400; free += 124 {
				j, _, _, err := Open(smallDisk(t, free))
				if err != nil {
					t.Fatal(err)
				}
				value := json.RawMessage(`"` + strings.Repeat("x", size) + `"`)
				put := func(i int) error { return j.Put(fmt.Sprint("pod/", i), value) }
				n := 0
				for ; n < 2000 && err == nil; n++ {
					err = put(n)
				}
				if n--; n < 2000-1 && !errors.Is(err, unix.ENOSPC) {
					t.Fatalf("%d KiB free: entry %d: %v", free, n, err)
				}
				for i := range n {
					if i == n/2 {
						if j, err = reopened(j); err != nil {
							t.Fatalf("%d KiB free: %v", free, err)
						}
					}
					_ = put(5000) // which others ask for meanwhile
					key := fmt.Sprint("pod/", i)
					if err := j.Move(key, "removed/"+key, value); err != nil {
						t.Fatalf("%d KiB free, %d of %d entries of %d bytes: %v", free, i, n, size, err)
					}
					if err := j.Delete("removed/" + key); err != nil {
						t.Fatalf("%d KiB free, %d of %d entries of %d bytes: %v", free, i, n, size, err)
					}
				}
				if err := j.Delete("pod/5000"); err != nil {
					t.Fatal(err)
				}
				if left := keysIn(t, j.path); left != "" && left != fmt.Sprint("pod/", n) {
					t.Errorf("%d KiB free: left are %q", free, left)
				}
				j.Close()
			}
		}
	})
}

func reopened(j *Journal) (*Journal, error) {
	if err := j.Close(); err != nil {
		return nil, err
	}
	j, _, _, err := Open(j.path)
	return j, err
}

// Where the file system cannot allocate ahead, a write that fails midway is taken
// back, so that what needs less room, and whoever opens the file next, go on.
func TestAWriteThatFailedMidwayIsTakenBack(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		j := newJournal(smallDisk(t, 300))
		j.allocate = func(*os.File, int64, int64) error { return unix.EOPNOTSUPP }
		j, _, _, err := j.start()
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		if err := j.Put("a", json.RawMessage("1")); err != nil {
			t.Fatal(err)
		}
		large := json.RawMessage(`"` + strings.Repeat("x", 400<<10) + `"`)
		if err := j.Put("b", large); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("too large: %v", err)
		}
		if err := j.Delete("a"); err != nil {
			t.Errorf("after that: %v", err)
		}
		if got := keysIn(t, j.path); got != "" {
			t.Errorf("the file holds %q", got)
		}
	})
}

// A file whose last line was cut off is used on a disk without room for another.
func TestATornLineOnAFullDisk(t *testing.T) {
	j, path := openForFailure(t)
	if err := j.Put("a", json.RawMessage("1")); err != nil {
		t.Fatal(err)
	}
	torn := []byte("12345678 {\"op\":\"put\",\"key\":\"" + strings.Repeat("torn", 500))
	if _, err := j.file.WriteAt(torn, j.end); err != nil {
		t.Fatal(err)
	}
	j.Close()
	full := newJournal(path)
	full.replace = func(string, []byte) error {
		return &durable.Error{Op: "write", Path: path, Err: unix.ENOSPC}
	}
	j, held, damaged, err := full.start()
	if err != nil || len(held) != 1 || len(damaged) > 0 {
		t.Fatalf("held %v, damaged %v, %v", held, damaged, err)
	}
	if err := j.Delete("a"); err != nil {
		t.Error(err)
	}
	if err := j.Put("b", json.RawMessage("2")); err != nil {
		t.Error(err)
	}
	if got := keysIn(t, path); got != "b" {
		t.Errorf("the file holds %q", got)
	}
	j.Close()
}
