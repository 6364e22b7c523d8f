package ownership

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/treewalk"
)

// kernels are those that the tests run on: this one, and what older ones lack.
func kernels() map[string]kernel {
	return map[string]kernel{
		"all":          {fchmodat2: true},
		"no fchmodat2": {},
		"no mount ids": {fchmodat2: true, tree: treewalk.Options{WithoutMountIDs: true}},
		"no openat2":   {fchmodat2: true, tree: treewalk.Options{WithoutOpenat2: true}},
		"nothing new":  {tree: treewalk.Options{WithoutMountIDs: true, WithoutOpenat2: true}},
	}
}

type file struct {
	path string
	mode fs.FileMode // with the type; a link leads to "file"
}

func makeFiles(t testing.TB, dir string, files ...file) {
	t.Helper()
	for _, f := range files {
		path := filepath.Join(dir, f.path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := makeFile(path, f.mode); err != nil {
			t.Fatal(err)
		}
	}
}

func makeFile(path string, mode fs.FileMode) error {
	switch mode.Type() {
	case fs.ModeSymlink:
		return os.Symlink("file", path)
	case fs.ModeDir:
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
	case fs.ModeNamedPipe:
		if err := unix.Mkfifo(path, 0o600); err != nil {
			return err
		}
	case fs.ModeSocket:
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	default:
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode)
}

// shown is what the test looks at of a file.
type shown struct {
	mode fs.FileMode
	gid  uint32
}

func look(t testing.TB, path string) shown {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return shown{info.Mode(), info.Sys().(*syscall.Stat_t).Gid}
}

const (
	dir    = fs.ModeDir
	setgid = fs.ModeSetgid
	link   = fs.ModeSymlink
)

// What the kubelet's own walk makes of these modes.
var rules = []struct {
	path                       string
	before, after, afterWhenRO fs.FileMode
}{
	{"file", 0o600, 0o660, 0o640},
	{"nothing", 0, 0o660, 0o440},
	{"executable", 0o755, 0o775, 0o755},
	{"private", 0o700, 0o760, 0o740},
	{"setuid", fs.ModeSetuid | 0o711, fs.ModeSetuid | 0o771, fs.ModeSetuid | 0o751},
	{"setgid", setgid | 0o755, 0o775, 0o755}, // which was for another group
	{"locking", setgid | 0o644, 0o664, 0o644},
	{"both", fs.ModeSetuid | setgid | 0o755, fs.ModeSetuid | 0o775, fs.ModeSetuid | 0o755},
	{"pipe", fs.ModeNamedPipe | 0o600, fs.ModeNamedPipe | 0o660, fs.ModeNamedPipe | 0o640},
	{"socket", fs.ModeSocket | 0o755, fs.ModeSocket | 0o775, fs.ModeSocket | 0o755},
	{"dir", dir | 0o700, dir | setgid | 0o770, dir | setgid | 0o750},
	{"sticky", dir | fs.ModeSticky | 0o777, dir | setgid | fs.ModeSticky | 0o777, dir | setgid | fs.ModeSticky | 0o777},
	{"dir/file", 0o644, 0o664, 0o644},
	{"dir/link", link, link | 0o777, link | 0o777},
	{"dangling", link, link | 0o777, link | 0o777},
	{"dir/dir", dir | 0o555, dir | setgid | 0o775, dir | setgid | 0o555},
}

func makeRules(t testing.TB, root string) {
	t.Helper()
	for _, r := range rules {
		makeFiles(t, root, file{r.path, r.before})
	}
}

func assertRules(t *testing.T, root string, gid uint32, readOnly bool) {
	t.Helper()
	for _, r := range rules {
		want := shown{r.after, gid}
		if readOnly {
			want.mode = r.afterWhenRO
		}
		if own := uint32(os.Getegid()); own == gid && !r.before.IsDir() {
			want.mode |= r.before & setgid // it is still for the group that it was for
		}
		if got := look(t, filepath.Join(root, r.path)); got != want {
			t.Errorf("%s is %v of %d, want %v", r.path, got.mode, got.gid, want.mode)
		}
	}
}

func TestModesAreTheKubelets(t *testing.T) {
	onKernels(t, func(t *testing.T, k kernel, gid uint32) {
		for _, readOnly := range []bool{false, true} {
			root := t.TempDir()
			makeRules(t, root)
			for range 2 {
				if err := set(t.Context(), root, Group{ID: gid, ReadOnly: readOnly}, Options{}, k); err != nil {
					t.Fatal(err)
				}
				assertRules(t, root, gid, readOnly)
			}
		}
	})
}

// onKernels runs a test on each kernel, as root and as the root of a user
// namespace, with a group that files can be given to there.
func onKernels(t *testing.T, test func(t *testing.T, k kernel, gid uint32)) {
	nstest.Run(t, func(t *testing.T) {
		gid := ownGroup(t)
		for name, k := range kernels() {
			t.Run(name, func(t *testing.T) { test(t, k, gid) })
		}
	})
}

// ownGroup is another group than the process's where it may give files to one.
func ownGroup(t testing.TB) uint32 {
	t.Helper()
	const another = 4711
	err := os.Chown(t.TempDir(), -1, another)
	switch {
	case err == nil:
		return another
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM):
		return uint32(os.Getegid())
	}
	t.Fatal(err)
	return 0
}
