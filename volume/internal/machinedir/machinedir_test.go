package machinedir_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/internal/machinedir"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func take(t *testing.T, dir, file string) *machinedir.Lock {
	t.Helper()
	l, err := machinedir.Take(dir, file, "")
	must(t, err)
	t.Cleanup(l.Close)
	return l
}

func TestLocks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "dir")
	if taken, err := machinedir.IsTaken(dir, "file"); taken || err != nil {
		t.Errorf("before there is anything: %v, %v", taken, err)
	}
	l, whole := take(t, dir, "file"), take(t, dir, "")
	for _, file := range []string{"file", ""} {
		if _, err := machinedir.Take(dir, file, ""); !errors.Is(err, machinedir.ErrBusy) {
			t.Errorf("a second lock of %q: %v", file, err)
		}
	}
	if taken, err := machinedir.IsTaken(dir, "file"); !taken || err != nil {
		t.Errorf("IsTaken = %v, %v", taken, err)
	}
	take(t, dir, "other")
	l.Close()
	whole.Close()
	if taken, err := machinedir.IsTaken(dir, "file"); taken || err != nil {
		t.Errorf("IsTaken = %v, %v", taken, err)
	}
	must(t, os.Chmod(dir, 0o777))
	if _, err := machinedir.Take(dir, "file", ""); !isUnsafe(err) {
		t.Errorf("in a directory that others can write to: %v", err)
	}
	must(t, os.Chmod(dir, 0o700), os.Remove(filepath.Join(dir, "file")), os.Symlink("/dev/null", filepath.Join(dir, "file")))
	if _, err := machinedir.Take(dir, "file", ""); !isUnsafe(err) {
		t.Errorf("a link: %v", err)
	}
}

func isUnsafe(err error) bool {
	_, ok := errors.AsType[*rootdir.Error](err)
	return ok
}

// Who has the lock may remove what is locked: another takes a lock of what is there then.
func TestLocksOfWhatIsRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	for _, file := range []string{"file", ""} {
		var all sync.WaitGroup
		var holders atomic.Int32
		for range 8 {
			all.Go(func() {
				for range 50 {
					l, err := machinedir.Take(dir, file, "")
					if errors.Is(err, machinedir.ErrBusy) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if holders.Add(1) > 1 {
						t.Error("two have the lock")
					}
					holders.Add(-1)
					if file != "" {
						_ = l.Remove(file)
					}
					_ = os.Remove(dir)
					l.Close()
				}
			})
		}
		all.Wait()
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
}

func TestEntries(t *testing.T) {
	top := t.TempDir()
	l := take(t, filepath.Join(top, "dir"), "")
	there, gone := filepath.Join(top, "dir"), filepath.Join(top, "gone")
	for range 2 {
		must(t, l.Enter("a", there), l.Enter("b", gone))
	}
	must(t, l.Enter("a", gone), l.Enter("a", there))
	must(t, os.Symlink(gone, filepath.Join(top, "dir", "old"))) // of an earlier version
	all, err := l.All()
	if err != nil || len(all) != 3 || all[0].Text != there || all[0].IsGone(there) || !all[1].IsGone(gone) || !all[2].IsGone(gone) {
		t.Errorf("entries %+v, %v", all, err)
	}
	for _, name := range []string{"a", "b", "old", "never"} {
		must(t, l.Leave(name))
	}
	if _, ok, err := l.Get("a"); ok || err != nil {
		t.Errorf("it is there: %v", err)
	}
	must(t, os.Remove(filepath.Join(top, "dir"))) // nothing is left
}

// What cannot be read is an error.
func TestUnreadableEntries(t *testing.T) {
	dir := t.TempDir()
	l := take(t, dir, "")
	must(t, os.WriteFile(filepath.Join(dir, "a"), nil, 0o600))
	if _, ok, err := l.Get("a"); ok || !errors.Is(err, unix.EINVAL) {
		t.Errorf("Get = %v, %v", ok, err)
	}
}

// A path of another mount namespace is not gone because it is not to be seen.
func TestAnotherMountNamespace(t *testing.T) {
	const dirVar = "PODVOL_MACHINEDIR_TEST"
	dir, given := os.LookupEnv(dirVar)
	if !given { // the namespace of the one that enters
		dir = filepath.Join(t.TempDir(), "dir")
		must(t, os.Chmod(filepath.Dir(dir), 0o755))
		t.Setenv(dirVar, dir)
		l := take(t, dir, "")
		must(t, l.Enter("a", "/path/of/a/container"), os.Symlink("/path/before", filepath.Join(dir, "old")))
		if e, ok, err := l.Get("a"); !ok || err != nil || e.IsElsewhere() || !e.IsGone(e.Text) {
			t.Errorf("in its own namespace: %+v, %v, %v", e, ok, err)
		}
		l.Close()
	}
	nstest.Run(t, func(t *testing.T) {
		if !ownsIt(dir) {
			return // in a user namespace of root's tests it is another's
		}
		l := take(t, dir, "")
		all, err := l.All()
		if err != nil || len(all) != 2 || !all[0].IsElsewhere() || all[0].IsGone(all[0].Text) || !all[1].IsGone(all[1].Text) {
			t.Errorf("entries %+v, %v", all, err)
		}
		must(t, l.Enter("a", all[0].Text)) // its own now
		if e, _, err := l.Get("a"); err != nil || e.IsElsewhere() {
			t.Errorf("%+v, %v", e, err)
		}
	})
}

// The number of a mount namespace, and that of a root directory, are used again. Here they are the
// same in another view of the same mount namespace: that of a program in a bind mount of all.
func TestAnotherViewWithTheSameNumbers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		top := filepath.Join(t.TempDir(), "top")
		must(t, os.Mkdir(top, 0o700), unix.Mount("/", top, "", unix.MS_BIND|unix.MS_REC, ""))
		dir := filepath.Join(t.TempDir(), "dir")
		l := take(t, dir, "")
		must(t, l.Enter("a", "/path/that/is/gone"), l.Enter("b", "/path/that/is/gone"))
		outside, err := os.Open("/")
		must(t, err)
		defer outside.Close()
		must(t, unix.Chroot(top))
		e, ok, err := l.Get("a")
		if !ok || err != nil || !e.IsElsewhere() || e.IsGone(e.Text) || e.IsOwn() {
			t.Errorf("in another view: %+v, %v, %v", e, ok, err)
		}
		must(t, l.Enter("b", "/path/that/is/gone"))
		if e, ok, err := l.Get("b"); !ok || err != nil || !e.IsGone(e.Text) {
			t.Errorf("its own now: %+v, %v, %v", e, ok, err)
		}
		must(t, outside.Chdir(), unix.Chroot("."))
		if e, ok, err := l.Get("a"); !ok || err != nil || !e.IsGone(e.Text) {
			t.Errorf("in the first view: %+v, %v, %v", e, ok, err)
		}
	})
}

// An older kernel may give all that it tells of a view to the next one: no entry is gone there
// before the machine ends, save in the machine's own mount namespace.
func TestViewsOfAnOldKernel(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := take(t, filepath.Join(t.TempDir(), "dir"), "")
		l.AsOldKernel()
		must(t, l.Enter("a", "/path/that/is/gone"))
		if e, ok, err := l.Get("a"); !ok || err != nil || !e.IsElsewhere() || e.IsGone(e.Text) {
			t.Errorf("%+v, %v, %v", e, ok, err)
		}
	})
}

// An entry is its writer's by the directory that is home, whatever it is called.
func TestHomes(t *testing.T) {
	top := t.TempDir()
	dir, first, second := filepath.Join(top, "dir"), filepath.Join(top, "first"), filepath.Join(top, "second")
	must(t, os.Mkdir(first, 0o700), os.Mkdir(second, 0o700))
	get := func(home string) machinedir.Entry {
		t.Helper()
		id := ""
		if home != "" {
			var err error
			id, err = machinedir.HomeOf(home)
			must(t, err)
		}
		l, err := machinedir.Take(dir, "", id)
		must(t, err)
		defer l.Close()
		e, ok, err := l.Get("a")
		must(t, err)
		if !ok {
			must(t, l.Enter("a", "text"))
		}
		return e
	}
	for _, home := range []string{first, ""} {
		get(home)
		beside := filepath.Join(dir, "a.in")
		is, err := os.Readlink(beside)
		must(t, err)
		if !get(second).IsOwn() {
			t.Error("of another home, but from here")
		}
		_, rest, _ := strings.Cut(is, " ")
		must(t, os.Remove(beside), os.Symlink("another-view "+rest, beside))
		must(t, os.Rename(first, first+"-"), os.Symlink(first+"-", first))
		for of, own := range map[string]bool{first: home != "", second: false, "": false} {
			if e := get(of); e.IsOwn() != own || !e.IsElsewhere() {
				t.Errorf("entered from %q, looked at from %q: %+v", home, of, e)
			}
		}
		must(t, os.Remove(first), os.Rename(first+"-", first), os.RemoveAll(dir))
	}
	if _, err := machinedir.HomeOf(filepath.Join(top, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
}

// A writer that is killed on its way has entered nothing, or what another one does not take for gone.
func TestAWriterThatIsKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	l := take(t, dir, "")
	must(t, l.Enter("a", "/path/that/is/gone"), os.Remove(filepath.Join(dir, "a")), os.Symlink("left", filepath.Join(dir, ".new-a.in")))
	if e, ok, err := l.Get("a"); ok || err != nil {
		t.Errorf("before the entry: %+v, %v", e, err)
	}
	if all, err := l.All(); len(all) > 0 || err != nil {
		t.Errorf("before the entry: %+v, %v", all, err)
	}
	must(t, os.Symlink("/another/path", filepath.Join(dir, "a")))
	if e, ok, err := l.Get("a"); !ok || err != nil || !e.IsElsewhere() || e.IsGone(e.Text) {
		t.Errorf("beside what is another's: %+v, %v, %v", e, ok, err)
	}
	must(t, l.Enter("a", "/path/that/is/gone"), l.Leave("a"), os.Remove(dir))
}

func ownsIt(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && int(st.Uid) == os.Geteuid()
}
