package nfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func openRootOf(t *testing.T, dir string) *os.File {
	t.Helper()
	root, err := openRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func wantMode(t *testing.T, path string, want fs.FileMode) {
	t.Helper()
	if info, err := os.Lstat(path); err != nil || info.Mode() != fs.ModeDir|want {
		t.Errorf("%s: %v, %v; want mode %v", path, info, err, want)
	}
}

func makeDir(t *testing.T, path string, mode fs.FileMode, files ...string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, path, files...)
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

// Between mkdir and open, somebody who may write there puts another directory in
// place of the new one.
func TestMakeDirGivesNoOtherDirectoryItsMode(t *testing.T) {
	for name, tc := range map[string]struct {
		mode  fs.FileMode
		files []string
	}{
		"private":            {0o700, []string{"secret"}},
		"private, empty":     {0o700, nil},
		"open to some":       {0o750, nil},
		"like a new one":     {0o700 | fs.ModeSticky, []string{"secret"}},
		"open, set-group-id": {0o770 | fs.ModeSetgid, []string{"data"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			victim, made := filepath.Join(dir, "victim"), filepath.Join(dir, "a")
			makeDir(t, victim, tc.mode, tc.files...)
			kept, err := os.Open(victim)
			if err != nil {
				t.Fatal(err)
			}
			defer kept.Close()
			m := newMaker(0o777)
			m.mkdir = func(at int, name string, mode uint32) error {
				return errors.Join(unix.Mkdirat(at, name, mode), os.Rename(made, filepath.Join(dir, "stolen")), os.Rename(victim, made))
			}
			err = m.below(openRootOf(t, dir), "a")
			if failed, ok := errors.AsType[*pathError](err); !ok || failed.element != "a" {
				t.Errorf("below = %v", err)
			}
			if info, err := kept.Stat(); err != nil || info.Mode() != fs.ModeDir|tc.mode {
				t.Errorf("its mode is %v, %v", info.Mode(), err)
			}
			if len(tc.files) > 0 {
				wantMode(t, made, tc.mode) // and still there
			}
		})
	}
}

// A crash may leave what has not got its mode; later it gets that, but nothing
// that could be anybody's.
func TestMakeDirFinishesWhatWasInterrupted(t *testing.T) {
	for name, tc := range map[string]struct {
		mode   fs.FileMode
		files  []string
		wanted uint32
		want   fs.FileMode
	}{
		"interrupted":         {0o700 | fs.ModeSticky, nil, 0o2775, 0o775 | fs.ModeSetgid},
		"with its group's":    {0o700 | fs.ModeSticky | fs.ModeSetgid, nil, 0o750, 0o750 | fs.ModeSetgid},
		"in use":              {0o700 | fs.ModeSticky, []string{"data"}, 0o775, 0o700 | fs.ModeSticky},
		"somebody's":          {0o700, nil, 0o775, 0o700},
		"somebody's, sticky":  {0o770 | fs.ModeSticky, nil, 0o777, 0o770 | fs.ModeSticky},
		"as it is wanted":     {0o700 | fs.ModeSticky, nil, 0o1700, 0o700 | fs.ModeSticky},
		"wanted with a group": {0o700 | fs.ModeSticky, nil, 0o3700, 0o700 | fs.ModeSticky},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			makeDir(t, filepath.Join(dir, "a"), tc.mode, tc.files...)
			if err := makeBelow(openRootOf(t, dir), "a/b", tc.wanted); err != nil {
				t.Fatal(err)
			}
			wantMode(t, filepath.Join(dir, "a"), tc.want)
		})
	}
}

// What cannot get its mode is not left: a later try would take it for somebody's.
func TestMakeDirTakesBackWhatDoesNotGetItsMode(t *testing.T) {
	for name, chmod := range map[string]func(int, uint32) error{
		"refused": func(int, uint32) error { return unix.EIO },
		"ignored": func(int, uint32) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			m := newMaker(0o770)
			m.chmod = chmod
			err := m.below(openRootOf(t, dir), "a")
			if failed, ok := errors.AsType[*pathError](err); !ok || failed.element != "a" || name == "refused" && !errors.Is(err, unix.EIO) {
				t.Errorf("below = %v", err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
	t.Run("a server without sticky bits", func(t *testing.T) {
		dir := t.TempDir()
		m := newMaker(0o770)
		m.mkdir = func(at int, name string, mode uint32) error { return unix.Mkdirat(at, name, mode&0o777) }
		if err := m.below(openRootOf(t, dir), "a"); !errors.Is(err, unix.EOPNOTSUPP) {
			t.Errorf("below = %v", err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left %v, %v", left, err)
		}
		m.mode = 0o700
		if err := m.below(openRootOf(t, dir), "a"); err != nil {
			t.Errorf("with the mode that it is to have: %v", err)
		}
	})
}

// Several nodes make the same at the same time.
func TestMakeDirTogether(t *testing.T) {
	for range 50 {
		dir := t.TempDir()
		root := openRootOf(t, dir)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if err := makeBelow(root, "a/b", 0o2771); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		wantMode(t, filepath.Join(dir, "a"), 0o771|fs.ModeSetgid)
		wantMode(t, filepath.Join(dir, "a/b"), 0o771|fs.ModeSetgid)
	}
}

// What a directory must be for something to be made in it.
func TestMakeDirGoesThroughNothingElse(t *testing.T) {
	top := unix.Statx_t{Mode: unix.S_IFDIR, Dev_major: 8, Dev_minor: 1}
	for name, tc := range map[string]struct {
		change func(*unix.Statx_t)
		want   error
	}{
		"a directory":       {func(*unix.Statx_t) {}, nil},
		"a link":            {func(st *unix.Statx_t) { st.Mode = unix.S_IFLNK }, errIsLink},
		"a file":            {func(st *unix.Statx_t) { st.Mode = unix.S_IFREG }, errIsNoDir},
		"another disk":      {func(st *unix.Statx_t) { st.Dev_minor = 2 }, errOtherMount},
		"another disk type": {func(st *unix.Statx_t) { st.Dev_major = 0 }, errOtherMount},
		"not mounted yet":   {func(st *unix.Statx_t) { st.Attributes = unix.STATX_ATTR_AUTOMOUNT }, errOtherMount},
	} {
		st := top
		tc.change(&st)
		if err := fits(st, top); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}
