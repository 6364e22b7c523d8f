package rootdir_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/rootdir"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path ...string) string {
	t.Helper()
	dir := filepath.Join(path...)
	must(t, os.MkdirAll(dir, 0o755))
	return dir
}

// give makes a file another user's, which only root can.
func give(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file to another user")
	}
	if err := os.Lchown(path, 4711, 4711); errors.Is(err, unix.EINVAL) {
		t.Skip("this user namespace has no other user")
	} else {
		must(t, err)
	}
}

// Whatever another user has planted on the way, or could change, is refused, and
// named.
func TestNobodyElseLeadsTheWay(t *testing.T) {
	for name, plant := range map[string]func(t *testing.T, at string){
		"another user's": func(t *testing.T, at string) { give(t, mkdir(t, at)) },
		"another user's, for all": func(t *testing.T, at string) {
			must(t, os.Chmod(mkdir(t, at), 0o777|fs.ModeSticky))
			give(t, at)
		},
		"for all": func(t *testing.T, at string) { must(t, os.Chmod(mkdir(t, at), 0o777)) },
		"for a group": func(t *testing.T, at string) {
			give(t, mkdir(t, at))
			must(t, os.Lchown(at, 0, 4711))
			must(t, os.Chmod(at, 0o770))
		},
		"another user's link": func(t *testing.T, at string) {
			must(t, os.Symlink(mkdir(t, t.TempDir(), "victim"), at))
			give(t, at)
		},
		"second name of a link": func(t *testing.T, at string) {
			first := filepath.Join(filepath.Dir(at), "first")
			must(t, os.Symlink(mkdir(t, t.TempDir(), "victim"), first))
			must(t, os.Link(first, at))
		},
	} {
		for _, below := range []string{"", "below", "below/it"} {
			t.Run(name+"/"+below, func(t *testing.T) {
				at := filepath.Join(t.TempDir(), "planted")
				plant(t, at)
				for what, open := range openers() {
					dir, err := open(filepath.Join(at, below))
					refused, ok := errors.AsType[*rootdir.Error](err)
					if !ok {
						t.Fatalf("%s: %v, %v", what, dir, err)
					}
					if refused.Path != at || refused.Reason == "" || refused.Advice == "" {
						t.Errorf("%s: %+v, want the path %s", what, refused, at)
					}
				}
				if entries, err := os.ReadDir(at); err != nil || len(entries) > 0 {
					t.Errorf("made: %v, %v", entries, err)
				}
			})
		}
	}
}

func openers() map[string]func(string) (*os.File, error) {
	return map[string]func(string) (*os.File, error){
		"Open": rootdir.Open,
		"Make": func(path string) (*os.File, error) { return rootdir.Make(path, 0o700) },
	}
}

func TestWhatMayBeOnTheWay(t *testing.T) {
	for name, plant := range map[string]func(t *testing.T, at string){
		"own":            func(t *testing.T, at string) { mkdir(t, at) },
		"own, of group":  func(t *testing.T, at string) { must(t, os.Chmod(mkdir(t, at), 0o775)) },
		"sticky for all": func(t *testing.T, at string) { must(t, os.Chmod(mkdir(t, at), 0o777|fs.ModeSticky)) },
		"own link":       func(t *testing.T, at string) { must(t, os.Symlink(mkdir(t, t.TempDir(), "real"), at)) },
		"relative link": func(t *testing.T, at string) {
			mkdir(t, filepath.Dir(at), "real")
			must(t, os.Symlink("../"+filepath.Base(filepath.Dir(at))+"/./real", at))
		},
	} {
		t.Run(name, func(t *testing.T) {
			at := filepath.Join(t.TempDir(), "planted")
			plant(t, at)
			if _, err := rootdir.Open(filepath.Join(at, "new")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Open of what is not there: %v", err)
			}
			for range 2 {
				dir, err := rootdir.Make(filepath.Join(at, "new", "dir"), 0o700)
				must(t, err)
				must(t, dir.Close())
			}
			info, err := os.Stat(filepath.Join(at, "new", "dir"))
			must(t, err)
			if info.Mode().Perm() != 0o700 {
				t.Errorf("mode %v", info.Mode())
			}
		})
	}
}

func TestLinksThatLeadNowhere(t *testing.T) {
	base := t.TempDir()
	must(t, os.Symlink("loop", filepath.Join(base, "loop")))
	if _, err := rootdir.Make(filepath.Join(base, "loop"), 0o700); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a loop: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(base, "file"), nil, 0o600))
	for _, path := range []string{"file", "file/below"} {
		if _, err := rootdir.Make(filepath.Join(base, path), 0o700); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// plants are what may stand where a file or a directory should be.
func plants() map[string]func(t *testing.T, at, victim string) {
	return map[string]func(t *testing.T, at, victim string){
		"link":               func(t *testing.T, at, victim string) { must(t, os.Symlink(victim, at)) },
		"link to nothing":    func(t *testing.T, at, victim string) { must(t, os.Symlink(victim+"-new", at)) },
		"link to a dir":      func(t *testing.T, at, victim string) { must(t, os.Symlink(filepath.Dir(victim), at)) },
		"named pipe":         func(t *testing.T, at, _ string) { must(t, unix.Mkfifo(at, 0o600)) },
		"hard link":          func(t *testing.T, at, victim string) { must(t, os.Link(victim, at)) },
		"another user's":     func(t *testing.T, at, _ string) { must(t, os.WriteFile(at, nil, 0o666)); give(t, at) },
		"another user's dir": func(t *testing.T, at, _ string) { give(t, mkdir(t, at)) },
		"dir for all":        func(t *testing.T, at, _ string) { must(t, os.Chmod(mkdir(t, at), 0o777)) },
	}
}

func TestNothingPlantedIsOpened(t *testing.T) {
	for name, plant := range plants() {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			victim := filepath.Join(mkdir(t, base, "around"), "victim")
			must(t, os.WriteFile(victim, []byte("precious"), 0o644))
			parent, err := rootdir.Make(filepath.Join(base, "own"), 0o700)
			must(t, err)
			defer parent.Close()
			plant(t, filepath.Join(parent.Name(), "entry"), victim)
			_, err1 := rootdir.OpenFileAt(parent, "entry", unix.O_RDWR|unix.O_CREAT, 0o600)
			_, err2 := rootdir.OpenDirAt(parent, "entry")
			_, err3 := rootdir.MakeDirAt(parent, "entry", 0o700)
			for i, err := range []error{err1, err2, err3, rootdir.CheckFileAt(parent, "entry"), rootdir.CheckDirAt(parent, "entry")} {
				if _, ok := errors.AsType[*rootdir.Error](err); !ok {
					t.Errorf("call %d: %v", i, err)
				}
			}
			info, err := os.Stat(victim)
			must(t, err)
			if data, err := os.ReadFile(victim); err != nil || string(data) != "precious" || info.Mode() != 0o644 {
				t.Errorf("the victim: %q, %v, %v", data, info.Mode(), err)
			}
			if names, err := os.ReadDir(filepath.Dir(victim)); err != nil || len(names) != 1 {
				t.Errorf("beside the victim: %v, %v", names, err)
			}
		})
	}
}

func TestOwnFilesAndDirectories(t *testing.T) {
	parent, err := rootdir.Open(t.TempDir())
	must(t, err)
	defer parent.Close()
	for _, err := range []error{rootdir.CheckFileAt(parent, "file"), rootdir.CheckDirAt(parent, "dir")} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("what is not there: %v", err)
		}
	}
	for range 2 {
		file, err := rootdir.OpenFileAt(parent, "file", unix.O_RDWR|unix.O_CREAT, 0o600)
		must(t, err)
		must(t, file.Close())
		dir, err := rootdir.MakeDirAt(parent, "dir", 0o700)
		must(t, err)
		_, err = dir.ReadDir(-1)
		must(t, errors.Join(err, dir.Close()))
	}
	must(t, rootdir.CheckFileAt(parent, "file"))
	must(t, rootdir.CheckDirAt(parent, "dir"))
}
