package durable_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := []string{}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func TestWriteFile(t *testing.T) {
	longest := strings.Repeat("n", 255)
	for _, tc := range []struct {
		name    string
		base    string
		prepare func(t *testing.T, dir string)
		perm    fs.FileMode
	}{
		{name: "new", base: "record", perm: 0o600},
		{name: "wide permissions despite the umask", base: "record", perm: 0o666},
		{name: "no permissions at all", base: "record", perm: 0},
		{name: "longest name", base: longest, perm: 0o600},
		{name: "replaces a file and its permissions", base: "record", perm: 0o600, prepare: func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "record"), []byte("an older and longer text"), 0o644); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "replaces a read-only file", base: "record", perm: 0o400, prepare: func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "record"), nil, 0o400); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if tc.prepare != nil {
				tc.prepare(t, dir)
			}
			path := filepath.Join(dir, tc.base)
			want := []byte("contents")
			if err := durable.WriteFile(path, want, tc.perm); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode() != tc.perm {
				t.Errorf("mode = %v, want %v", info.Mode(), tc.perm)
			}
			if err := os.Chmod(path, 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Errorf("contents = %q, %v, want %q", got, err, want)
			}
			if diff := cmp.Diff([]string{tc.base}, names(t, dir)); diff != "" {
				t.Errorf("other files were left (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWriteFileReplacesLinkNotItsTarget(t *testing.T) {
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(elsewhere, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "record")
	if err := os.Symlink(elsewhere, path); err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(elsewhere); string(got) != "untouched" {
		t.Errorf("the link's target was changed to %q", got)
	}
	if got, _ := os.ReadFile(path); string(got) != "new" {
		t.Errorf("contents = %q", got)
	}
}

func TestCreate(t *testing.T) {
	dir := t.TempDir() // before the umask, which is for directories too
	old := unix.Umask(0o777)
	t.Cleanup(func() { unix.Umask(old) })
	longest := strings.Repeat("n", 255)
	path := filepath.Join(dir, longest)
	if err := durable.Create(path, []byte("contents"), 0o640); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	info, statErr := os.Lstat(path)
	if err != nil || string(got) != "contents" || statErr != nil || info.Mode() != 0o640 {
		t.Errorf("%q, %v; %v, %v", got, err, info, statErr)
	}
	if diff := cmp.Diff([]string{longest}, names(t, dir)); diff != "" {
		t.Errorf("other files were left (-want +got):\n%s", diff)
	}
	missing := filepath.Join(dir, "missing", "record")
	err = durable.Create(missing, nil, 0o600)
	if failure, ok := errors.AsType[*durable.Error](err); !ok || failure.Path != missing || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in a missing directory: %v", err)
	}
}

func TestCreateReplacesNothing(t *testing.T) {
	for name, prepare := range map[string]func(path string) error{
		"a file":          func(path string) error { return os.WriteFile(path, []byte("old"), 0o600) },
		"a directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"a dangling link": func(path string) error { return os.Symlink("nowhere", path) },
		"a pipe":          func(path string) error { return unix.Mkfifo(path, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "record")
			if err := prepare(path); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			err = durable.Create(path, []byte("new"), 0o600)
			if failure, ok := errors.AsType[*durable.Error](err); !ok || failure.Replaced || !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), path) {
				t.Errorf("err = %v, want fs.ErrExist", err)
			}
			after, err := os.Lstat(path)
			if err != nil || !os.SameFile(before, after) || after.Size() != before.Size() {
				t.Errorf("it was changed: %v, %v", after, err)
			}
			if diff := cmp.Diff([]string{"record"}, names(t, dir)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestOneOfManyCreates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	var created atomic.Int32
	var creators sync.WaitGroup
	for n := range 8 {
		creators.Go(func() {
			switch err := durable.Create(path, fmt.Append(nil, n), 0o600); {
			case err == nil:
				created.Add(1)
			case !errors.Is(err, fs.ErrExist):
				t.Error(err)
			}
			if got, err := os.ReadFile(path); err != nil || len(got) != 1 {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	creators.Wait()
	if n := created.Load(); n != 1 {
		t.Errorf("%d calls succeeded, want 1", n)
	}
}

// A reader never sees a part of the contents, however many writers there are.
func TestReadersSeeWholeContents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	contents := func(n int) []byte { return bytes.Repeat([]byte{byte('a' + n)}, 10_000) }
	if err := durable.WriteFile(path, contents(0), 0o600); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for n := range 3 {
		writers.Go(func() {
			for range 20 {
				if err := durable.WriteFile(path, contents(n), 0o600); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for {
		got, err := os.ReadFile(path)
		if err != nil || len(got) != 10_000 || bytes.Count(got, got[:1]) != 10_000 {
			t.Fatalf("read %d bytes, %v: not one whole version", len(got), err)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

func TestFailureLeavesOldFileAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "record")
	if err := os.MkdirAll(filepath.Join(path, "child"), 0o755); err != nil {
		t.Fatal(err)
	}
	err := durable.WriteFile(path, []byte("x"), 0o600)
	failure, ok := errors.AsType[*durable.Error](err)
	if !ok || failure.Path != path || failure.Replaced {
		t.Fatalf("err = %#v, want a durable.Error for %s", err, path)
	}
	if diff := cmp.Diff([]string{"record"}, names(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(path, "child")); err != nil {
		t.Error(err)
	}
}

func TestErrorsSayWhatToCheck(t *testing.T) {
	for err, want := range map[error]string{
		unix.ENOSPC: "df",
		unix.EDQUOT: "quota",
		unix.EROFS:  "read-only",
		unix.EACCES: "permissions",
		unix.EIO:    "disk",
		unix.ENOENT: "does not exist",
	} {
		text := (&durable.Error{Op: "write", Path: "/var/lib/podvol/podvol/record", Err: fmt.Errorf("write: %w", err)}).Error()
		if !strings.Contains(text, want) || !strings.Contains(text, "/var/lib/podvol/podvol/record") {
			t.Errorf("%v: %q lacks %q or the path", err, text, want)
		}
	}
	replaced := (&durable.Error{Op: "write", Path: "/r", Replaced: true, Err: unix.EIO}).Error()
	if !strings.Contains(replaced, "a crash may undo it") {
		t.Errorf("%q does not say that the file was replaced", replaced)
	}
}

func TestWriteFileWithoutDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "record")
	err := durable.WriteFile(path, nil, 0o600)
	if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Fatalf("err = %v", err)
	}
}

func TestRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{"", dir + "/", dir + "/.", dir + "/..", "/"} {
		if err := durable.WriteFile(path, nil, 0o600); err == nil {
			t.Errorf("WriteFile(%q) succeeded", path)
		}
		if err := durable.Remove(path); err == nil {
			t.Errorf("Remove(%q) succeeded", path)
		}
	}
}

func TestRemove(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "record")
	if err := durable.WriteFile(path, nil, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := durable.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if err := durable.Remove(filepath.Join(dir, "missing", "record")); err != nil {
		t.Errorf("in a missing directory: %v", err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := durable.Remove(path); !errors.Is(err, unix.EISDIR) {
		t.Errorf("removing a directory: %v, want EISDIR", err)
	}
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".durable-ABC.tmp", ".durable-DEF.tmp", ".durable-notes", "record", "x.tmp"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := durable.Sweep(dir)
	if err != nil || removed != 2 {
		t.Fatalf("Sweep = %d, %v, want 2", removed, err)
	}
	if diff := cmp.Diff([]string{".durable-notes", "record", "x.tmp"}, names(t, dir)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if removed, err := durable.Sweep(filepath.Join(dir, "missing")); err != nil || removed != 0 {
		t.Errorf("Sweep of a missing directory = %d, %v", removed, err)
	}
}

func BenchmarkWriteFile(b *testing.B) {
	for _, bench := range []struct {
		name  string
		write func(string, []byte, fs.FileMode) error
	}{{"durable", durable.WriteFile}, {"plain", os.WriteFile}} {
		b.Run(bench.name, func(b *testing.B) {
			dir, data := b.TempDir(), make([]byte, 500)
			for n := 0; b.Loop(); n++ {
				if err := bench.write(filepath.Join(dir, fmt.Sprint(n)), data, 0o600); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
