package tracefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// begun opens a file whose lines the test itself writes, in its own goroutine.
func begun(t *testing.T, path string, tell func(string)) *File {
	t.Helper()
	f, err := begin(path, plain, tell)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.out.Close() })
	return f
}

const line = "{\"step\":\"SetUp\"}\n"

// writes writes so many lines, and says how many were not left out.
func (f *File) writes(count int) int64 {
	before := f.written.Load()
	for range count {
		f.write([]byte(line))
	}
	return f.written.Load() - before
}

// asOrdinaryUser runs f in a thread of a user without rights, another one where the tests run as root.
func asOrdinaryUser(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if os.Geteuid() == 0 {
			runtime.LockOSThread() // and never unlocked
			// Directly: the wrappers of package syscall act on all threads.
			for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
				if _, _, errno := unix.RawSyscall(call, ordinaryUser, ordinaryUser, ordinaryUser); errno != 0 {
					t.Errorf("becoming an ordinary user: %v", errno)
					return
				}
			}
		}
		f()
	}()
	<-done
}

const ordinaryUser = 65534

// ownDir is a directory that an ordinary user can reach and owns.
func ownDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if os.Geteuid() == 0 {
		if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, ordinaryUser, ordinaryUser)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A file that cannot be renamed has its limit all the same. People hear of it once, and it goes on
// once it can be renamed.
func TestAFileThatCannotBeRotatedIsBounded(t *testing.T) {
	for name, obstacle := range map[string]struct {
		begin, end func(path string) error
		errno      syscall.Errno
	}{
		"a directory has the name": {
			func(path string) error { return os.MkdirAll(filepath.Join(older(path), "full"), 0o700) },
			func(path string) error { return os.RemoveAll(older(path)) }, syscall.EEXIST},
		"the directory is not writable": {
			func(path string) error { return os.Chmod(filepath.Dir(path), 0o555) },
			func(path string) error { return os.Chmod(filepath.Dir(path), 0o755) }, syscall.EACCES},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(ownDir(t), "trace")
			asOrdinaryUser(t, func() {
				var said []string
				f, err := begin(path, plain, func(text string) { said = append(said, text) })
				if err = errors.Join(err, obstacle.begin(path)); err != nil {
					t.Error(err)
					return
				}
				defer f.out.Close()
				f.limit = 3 * int64(len(line))
				if n := f.writes(3 + 2*pause); n != 2 {
					t.Errorf("%d lines are written", n)
				}
				if info, err := os.Stat(path); err != nil || info.Size() > f.limit {
					t.Errorf("%v, %v", info, err)
				}
				if len(said) != 1 || !strings.HasPrefix(said[0], fmt.Sprintf("spans are left out of %s: it has 64 MiB, and cannot be renamed: ", path)) {
					t.Errorf("people hear %q", said)
				}
				if cause := f.cause.Load(); cause == nil || !errors.Is(*cause, obstacle.errno) && !errors.Is(*cause, syscall.EISDIR) {
					t.Errorf("the cause is %v", cause)
				}
				if err := obstacle.end(path); err != nil {
					t.Error(err)
				}
				// The first of them may still be within a pause.
				if n := f.writes(pause + 2); n < 2 {
					t.Errorf("then %d lines are written", n)
				}
				if _, err := os.Stat(older(path)); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A rotation is not tried again at each line.
func TestAFileThatCannotBeRotatedIsTriedSeldom(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	f := begun(t, path, quiet)
	f.limit = 1
	if err := os.MkdirAll(filepath.Join(older(path), "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.writes(2)
	if err := os.RemoveAll(older(path)); err != nil {
		t.Fatal(err)
	}
	if n := f.writes(pause); n != 0 {
		t.Errorf("%d lines are written in the pause", n)
	}
	if n := f.writes(1); n != 1 {
		t.Error("it is not tried again")
	}
}

// A second process would rename the file of the first, and count none of its lines as missing.
func TestAFileHasOneWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	refused := func(when string) {
		t.Helper()
		if f, err := begin(path, plain, quiet); err == nil {
			f.out.Close()
			t.Errorf("%s: there are two", when)
		} else if !strings.Contains(err.Error(), "another process writes "+path) {
			t.Errorf("%s: %v", when, err)
		}
	}
	f := begun(t, path, quiet)
	refused("at first")
	f.limit = 1
	if n := f.writes(2); n != 2 {
		t.Errorf("%d lines are written", n)
	}
	if _, err := os.Stat(older(path)); err != nil {
		t.Error(err)
	}
	refused("after a rotation")
	if err := os.Rename(path, older(path)); err != nil {
		t.Fatal(err)
	}
	refused("within a rotation")
	f.out.Close()
	begun(t, path, quiet)
}

// What was opened before a rotation, and locked after it, is the file before.
func TestAFileThatIsMovedBeforeItIsLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := errors.Join(os.Rename(path, older(path)), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := lock(file, path); err == nil {
		t.Error("it is taken for the file at its path")
	}
}

// Somebody, such as logrotate, has moved it away: a new one begins, and what has its name since then
// is not renamed.
func TestAFileThatWasMoved(t *testing.T) {
	for _, theirs := range []string{"", "{\"step\":\"theirs\"}\n"} {
		path := filepath.Join(t.TempDir(), "trace")
		f := begun(t, path, quiet)
		f.limit = int64(len(line)+len(theirs)) + 1
		f.writes(1)
		if err := os.Rename(path, path+".moved"); err != nil {
			t.Fatal(err)
		}
		if theirs != "" {
			f.size = f.limit
			if err := errors.Join(os.WriteFile(path, []byte(theirs), 0o600), os.Chmod(path, 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		f.writes(1)
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != map[bool]fs.FileMode{true: 0o600, false: 0o644}[theirs == ""] {
			t.Errorf("%v, %v", info, err)
		}
		if _, err := os.Lstat(older(path)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a file of others was renamed: %v", err)
		}
		for path, want := range map[string]string{path: theirs + line, path + ".moved": line} {
			if text, err := os.ReadFile(path); err != nil || string(text) != want {
				t.Errorf("%s: %q, %v", path, text, err)
			}
		}
	}
}

// It is another process's by now: that one's lines stay where they are, and ours are counted.
func TestAFileThatWasMovedAndTaken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	var said []string
	f := begun(t, path, func(text string) { said = append(said, text) })
	f.limit = 1
	f.writes(1)
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	other := begun(t, path, quiet)
	other.writes(1)
	if n := f.writes(2); n != 0 || len(said) != 1 || !strings.Contains(said[0], "another process writes "+path) {
		t.Errorf("%d lines are written, and people hear %q", n, said)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != line {
		t.Errorf("%q, %v", text, err)
	}
}

// A line that was cut off before the rotation is the older file's.
func TestAFileThatIsRotatedAfterAPartOfALine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	if err := os.WriteFile(path, []byte(line[:5]), 0o600); err != nil {
		t.Fatal(err)
	}
	f := begun(t, path, quiet)
	f.limit = 1
	f.writes(1)
	if text, err := os.ReadFile(path); err != nil || string(text) != line {
		t.Errorf("%q, %v", text, err)
	}
}

// Who reads the file reads the next one too.
func TestANewFileIsLikeTheOneBefore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	f := begun(t, path, quiet)
	f.limit = 1
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = ordinaryUser, ordinaryUser-1
	}
	if err := errors.Join(os.Chown(path, uid, gid), os.Chmod(path, 0o646)); err != nil {
		t.Fatal(err)
	}
	f.writes(2)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if is := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o646 || int(is.Uid) != uid || int(is.Gid) != gid {
		t.Errorf("%v of %d:%d", info.Mode(), is.Uid, is.Gid)
	}
}

// An ordinary user cannot give a file to another group: what was that one's is not its own group's.
func TestANewFileOfAnotherGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make the file of another group")
	}
	path := filepath.Join(ownDir(t), "trace")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, ordinaryUser, 0), os.Chmod(path, 0o664)); err != nil {
		t.Fatal(err)
	}
	asOrdinaryUser(t, func() {
		f, err := begin(path, plain, quiet)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.out.Close()
		f.limit = 1
		f.writes(2)
	})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o604 || info.Sys().(*syscall.Stat_t).Uid != ordinaryUser {
		t.Errorf("%v, %v", info, err)
	}
}
