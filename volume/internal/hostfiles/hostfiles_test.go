package hostfiles_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/hostfiles"
)

func setUmask(t *testing.T, mask int) {
	old := unix.Umask(mask)
	t.Cleanup(func() { unix.Umask(old) })
}

func perm(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func TestMakeDirMakesParentsWithExactlyThisMode(t *testing.T) {
	base := t.TempDir()
	if err := os.Chmod(base, 0o711); err != nil {
		t.Fatal(err)
	}
	setUmask(t, 0o077)
	var own hostfiles.Own
	for range 2 {
		if err := own.MakeDir(t.Context(), filepath.Join(base, "a", "b", "c")+"/", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"a", "a/b", "a/b/c"} {
		if got := perm(t, filepath.Join(base, d)); got != 0o755 {
			t.Errorf("%s has mode %o", d, got)
		}
	}
	if got := perm(t, base); got != 0o711 {
		t.Errorf("a directory that was there has now mode %o", got)
	}
}

// Whoever may write in the directory above puts something of his choice where a
// directory was just made. It keeps its mode.
func TestMakeDirChangesNoStrangersMode(t *testing.T) {
	stranger := func(mode fs.FileMode, content ...string) func(string) error {
		return func(path string) error {
			err := os.Mkdir(path, 0o700)
			for _, name := range content {
				err = errors.Join(err, os.WriteFile(filepath.Join(path, name), nil, 0o600))
			}
			return errors.Join(err, os.Chmod(path, mode))
		}
	}
	elsewhere, noOther := t.TempDir(), errors.New("this process may not give a directory to another user")
	for name, plant := range map[string]func(string) error{
		"private, with files":  stranger(0o700, "key"),
		"open to others":       stranger(0o777),
		"sticky":               stranger(0o755 | fs.ModeSticky),
		"link to one":          func(path string) error { return os.Symlink("victim", path) },
		"link to one far away": func(path string) error { return os.Symlink(elsewhere, path) },
		"file":                 func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"another user's": func(path string) error {
			if err := os.Mkdir(path, 0o700); err != nil {
				return err
			}
			err := os.Chown(path, 4711, 4711)
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
				err = noOther
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			setUmask(t, 0o077)
			victim := filepath.Join(base, "victim")
			must(t, os.Mkdir(victim, 0o700))
			var own hostfiles.Own
			var planted fs.FileInfo
			var planting error
			own.AfterMaking(func(path string) { // in a goroutine that is not the test's
				if filepath.Base(path) != "swapped" {
					return
				}
				planting = errors.Join(os.Remove(path), plant(path))
				info, err := os.Stat(path)
				planted, planting = info, errors.Join(planting, err)
			})
			swapped := filepath.Join(base, "swapped")
			err := own.MakeDir(t.Context(), filepath.Join(swapped, "below"), 0o755)
			if errors.Is(planting, noOther) {
				t.Skip(noOther)
			}
			must(t, planting)
			if err == nil && !planted.IsDir() {
				t.Error("no error")
			}
			now, err := os.Stat(swapped)
			must(t, err)
			if now.Mode() != planted.Mode() {
				t.Errorf("the mode was %v and is %v", planted.Mode(), now.Mode())
			}
			if got := perm(t, victim); got != 0o700 {
				t.Errorf("a directory beside it has mode %o", got)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestMakeDirOverAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var own hostfiles.Own
	for _, path := range []string{file, filepath.Join(file, "below")} {
		if err := own.MakeDir(t.Context(), path, 0o755); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("MakeDir(%s) = %v, want ENOTDIR", path, err)
		}
	}
}

func TestMakeFile(t *testing.T) {
	base := t.TempDir()
	setUmask(t, 0o077)
	var own hostfiles.Own
	file := filepath.Join(base, "file")
	if err := own.MakeFile(t.Context(), file, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := perm(t, file); got != 0o644 {
		t.Errorf("mode %o", got)
	}
	if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := own.MakeFile(t.Context(), file, 0o644); !errors.Is(err, fs.ErrExist) {
		t.Errorf("MakeFile of a file that exists = %v", err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "data" {
		t.Errorf("the file was touched: %q, %v", data, err)
	}
	if err := own.MakeFile(t.Context(), filepath.Join(base, "no", "file"), 0o644); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("MakeFile without directory = %v", err)
	}
}

func TestStatFollowsLinks(t *testing.T) {
	base := t.TempDir()
	link := filepath.Join(base, "link")
	if err := os.Symlink(base, link); err != nil {
		t.Fatal(err)
	}
	var own hostfiles.Own
	info, err := own.Stat(t.Context(), link)
	if err != nil || !info.IsDir() {
		t.Errorf("Stat = %v, %v", info, err)
	}
	if _, err := own.Stat(t.Context(), filepath.Join(base, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat of nothing = %v", err)
	}
}

func TestEndedContextAsksNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	var own hostfiles.Own
	_, err := own.Stat(ctx, "/")
	if _, ok := errors.AsType[*blockingcall.AbandonedError](err); !ok || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Stat = %v", err)
	}
}

func TestKind(t *testing.T) {
	for path, want := range map[string]string{"/": "directory", "/proc/self/exe": "symbolic link", "/proc/version": "regular file", "/dev/null": "character device"} {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := hostfiles.Kind(info.Mode()); got != want {
			t.Errorf("Kind(%s) = %q, want %q", path, got, want)
		}
	}
	for mode, want := range map[fs.FileMode]string{
		fs.ModeSocket | 0o777: "socket", fs.ModeNamedPipe: "named pipe", fs.ModeDevice: "block device", fs.ModeIrregular: "special file",
	} {
		if got := hostfiles.Kind(mode); got != want {
			t.Errorf("Kind(%v) = %q, want %q", mode, got, want)
		}
	}
}

// elsewhere is a file system on which everything is missing.
type elsewhere struct{ volume.HostFiles }

func (elsewhere) Stat(context.Context, string) (fs.FileInfo, error) { return nil, fs.ErrNotExist }

func TestTheHostsRoleComesFirst(t *testing.T) {
	var own hostfiles.Own
	with := &volume.Host{RootDir: "/r", HostFiles: elsewhere{}}
	if _, err := own.Of(with).Stat(t.Context(), "/"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat = %v, which the host's role did not answer", err)
	}
	if _, err := own.Of(&volume.Host{RootDir: "/r"}).Stat(t.Context(), "/"); err != nil {
		t.Errorf("Stat without the role = %v", err)
	}
}
