package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// faultyDisk fails the operations of a journal on its file from the nth on, as
// many as it is told.
type faultyDisk struct {
	path        string
	first, last int // which operations fail, counted from 1
	err         error
	// done is how much of an operation that fails takes effect: nothing, a half,
	// or all of it.
	done float64
	// drops: a sync that fails forgets what was written since the last one.
	drops bool

	calls  int
	synced []byte // what a power cut leaves
}

func (d *faultyDisk) fails() bool {
	d.calls++
	return d.calls >= d.first && d.calls <= d.last
}

func (d *faultyDisk) journal() *Journal {
	j := newJournal(d.path)
	j.ahead = 4 << 10
	j.open = func(path string) (*os.File, error) {
		if d.fails() {
			return nil, d.err
		}
		return openFile(path)
	}
	j.writeAt = func(file *os.File, data []byte, offset int64) (int, error) {
		if !d.fails() {
			return file.WriteAt(data, offset)
		}
		n, err := file.WriteAt(data[:int(d.done*float64(len(data)))], offset)
		if err != nil {
			return n, err
		}
		return n, d.err
	}
	j.flush = func(file *os.File) error {
		if !d.fails() {
			return d.sync()
		}
		if d.drops {
			_ = file.Truncate(0)
			_, err := file.WriteAt(d.synced, 0)
			if err != nil {
				return err
			}
		}
		return d.err
	}
	j.replace = d.replace
	return j
}

func (d *faultyDisk) sync() (err error) {
	d.synced, err = os.ReadFile(d.path)
	return err
}

func (d *faultyDisk) replace(path string, data []byte) error {
	fails := d.fails()
	if fails && d.done < 1 {
		return &durable.Error{Op: "write", Path: path, Err: d.err}
	}
	temp := path + ".new"
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	if fails {
		return &durable.Error{Op: "write", Path: path, Replaced: true, Err: d.err}
	}
	return d.sync()
}

// powerCut leaves what is synced. A file that never was is not there: its contents are
// on disk before it gets its name.
func (d *faultyDisk) powerCut() error {
	if d.synced == nil {
		return os.Remove(d.path)
	}
	return os.WriteFile(d.path, d.synced, 0o600)
}

// acknowledged is what a journal must hold: for each key the values of which it
// may have any, where "" is none.
type acknowledged map[string][]string

func (a acknowledged) change(key, value string, err error) {
	if err == nil {
		a[key] = nil
	} else if a[key] == nil {
		a[key] = []string{""}
	}
	a[key] = append(a[key], value)
}

func (a acknowledged) check(t *testing.T, what, path string) {
	t.Helper()
	held, damaged, err := Read(path)
	if err != nil || len(damaged) > 0 {
		t.Errorf("%s: %v, damaged %v", what, err, damaged)
		return
	}
	found := make(map[string]string)
	for _, e := range held {
		found[e.Key] = string(e.Value)
	}
	for key, allowed := range a {
		if !strings.Contains(" "+strings.Join(allowed, " ")+" ", " "+found[key]+" ") {
			t.Errorf("%s: %s is %.20q (of %d bytes), none of %d values that it may have", what, key, found[key], len(found[key]), len(allowed))
		}
	}
	for key := range found {
		if a[key] == nil {
			t.Errorf("%s: %s was never put", what, key)
		}
	}
}

// play makes changes of all sizes, over what is preallocated and over a
// compaction, and opens the journal again in between.
func (d *faultyDisk) play() acknowledged {
	want := make(acknowledged)
	var j *Journal
	large := `"` + strings.Repeat("x", 4000) + `"`
	for i := range 12 {
		if i%5 == 0 || j == nil {
			if j != nil {
				j.Close()
			}
			var err error
			if j, _, _, err = d.journal().start(); err != nil {
				j = nil
				continue
			}
		}
		key, value := fmt.Sprint("k", i%4), fmt.Sprint(i)
		if i%3 == 1 {
			value = large
		}
		if i == 7 {
			j.compact = 0
		}
		want.change(key, value, j.Put(key, json.RawMessage(value)))
		_ = j.Note(key, json.RawMessage("1"))
		if i%4 == 3 {
			want.change("k2", "", j.Delete("k2"))
		}
	}
	if j != nil {
		j.Close()
	}
	return want
}

// Whichever operation on the file fails, how often, with whatever errno, and
// however much of it takes effect: what was acknowledged is found again, by who
// opens the journal next and after a power cut.
func TestAcknowledgedIsKeptWhateverFails(t *testing.T) {
	dir := t.TempDir()
	whole := &faultyDisk{path: filepath.Join(dir, "whole")}
	whole.play().check(t, "without faults", whole.path)
	runs := 0
	errnos := []error{unix.EIO, unix.ENOSPC, unix.EFBIG, unix.EDQUOT}
	if testtool.Shortened() {
		errnos = errnos[:1]
	}
	for first := 1; first <= whole.calls; first++ {
		for _, errno := range errnos {
			for _, done := range []float64{0, 0.5, 1} {
				for _, times := range []int{1, 1 << 20} {
					runs++
					d := &faultyDisk{path: filepath.Join(dir, fmt.Sprint(runs)), first: first, last: first + times - 1,
						err: errno, done: done, drops: done == 0}
					what := fmt.Sprintf("%v at operation %d and the next %d, of which %.1f is done", errno, first, times-1, done)
					want := d.play()
					if _, err := os.Stat(d.path); err != nil && d.synced == nil {
						continue // it was never made
					}
					want.check(t, what, d.path)
					if err := d.powerCut(); err != nil {
						t.Fatal(err)
					}
					want.check(t, what+", after a power cut", d.path)
					if t.Failed() {
						t.FailNow()
					}
					_ = os.Remove(d.path)
					_ = removeProofs(d.path)
				}
			}
		}
	}
	t.Logf("%d operations, %d runs", whole.calls, runs)
}

// However little room a disk has, what was acknowledged on it is found again.
func TestNearlyFullDisk(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal(err)
		}
		for _, free := range []int{4, 20, 100, 250, 300} { // KiB
			want := make(acknowledged)
			fill := filepath.Join(dir, "fill")
			if err := os.WriteFile(fill, make([]byte, (1024-8-free)<<10), 0o600); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "j")
			j, _, _, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			value := `"` + strings.Repeat("x", 7000) + `"`
			for i := range 50 {
				key := fmt.Sprint("k", i)
				want.change(key, value, j.Put(key, json.RawMessage(value)))
			}
			want.check(t, fmt.Sprintf("with %d KiB free", free), path)
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			for _, file := range []string{fill, path, proofPath(path), witnessPath(path)} {
				if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
			}
		}
	})
}
