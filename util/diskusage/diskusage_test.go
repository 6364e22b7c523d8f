package diskusage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/treewalk"
)

// nothingNew is an old kernel.
var nothingNew = treewalk.Options{WithoutMountIDs: true, WithoutOpenat2: true}

func write(t testing.TB, path string, size int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, size), 0o644); err != nil {
		t.Fatal(err)
	}
}

func generate(t testing.TB, dir string) {
	t.Helper()
	for n := range 300 {
		write(t, filepath.Join(dir, fmt.Sprint(n%7), fmt.Sprint(n%11), fmt.Sprint(n)), n*n)
	}
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer sparse.Close()
	if err := sparse.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	for n := range 5 {
		if err := os.Link(filepath.Join(dir, "5/10/208"), filepath.Join(dir, fmt.Sprintf("hardlink%d", n))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
}

func TestWalkAgreesWithDu(t *testing.T) {
	du, err := exec.LookPath("du")
	if err != nil {
		t.Skip("this machine has no du to compare with")
	}
	dir := t.TempDir()
	generate(t, dir)
	for _, o := range []options{{workers: 1}, {workers: 1, tree: nothingNew}, {workers: 4}} {
		got, err := measure(t.Context(), dir, o)
		if err != nil {
			t.Fatal(err)
		}
		for flag, value := range map[string]int64{"-B512": got.Bytes / 512, "--inodes": got.Inodes} {
			out, err := exec.CommandContext(t.Context(), du, "-s", "-x", flag, dir).Output()
			if err != nil {
				t.Skipf("this du does not know %s: %v", flag, err)
			}
			want, err := strconv.ParseInt(strings.Fields(string(out))[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			if value != want {
				t.Errorf("du %s says %d, Walk %d", flag, want, value)
			}
		}
	}
}

func TestHardLinksAndHolesCountOnce(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), 1<<20)
	before, err := Walk(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if before.Bytes < 1<<20 || before.Inodes != 2 {
		t.Errorf("usage = %+v, want at least 1 MiB in 2 inodes", before)
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	if after, err := Walk(t.Context(), dir); err != nil || after != before {
		t.Errorf("with a second name %+v, %v, want %+v", after, err, before)
	}
	if err := os.Truncate(filepath.Join(dir, "a"), 1<<40); err != nil {
		t.Fatal(err)
	}
	if after, err := Walk(t.Context(), dir); err != nil || after.Bytes > before.Bytes+1<<20 {
		t.Errorf("with a hole %+v, %v", after, err)
	}
}

func TestRootMayBeALink(t *testing.T) {
	dir := t.TempDir()
	generate(t, filepath.Join(dir, "tree"))
	if err := os.Symlink("tree", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	direct, err := Walk(t.Context(), filepath.Join(dir, "tree"))
	if err != nil {
		t.Fatal(err)
	}
	if linked, err := Walk(t.Context(), filepath.Join(dir, "link")); err != nil || linked != direct {
		t.Errorf("through a link %+v, %v, want %+v", linked, err, direct)
	}
}

func TestErrorsNameThePath(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	_, err := Walk(t.Context(), missing)
	if failure, ok := errors.AsType[*fs.PathError](err); !ok || failure.Path != missing || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
}

func TestEndedContextStops(t *testing.T) {
	dir := t.TempDir()
	generate(t, dir)
	cause := errors.New("the deadline of this volume")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if got, err := Walk(ctx, dir); !errors.Is(err, cause) || got.Inodes > 1 {
		t.Errorf("%+v, %v, want the cause and nothing counted", got, err)
	}
}

// Deeper than paths may be long and than descriptors are kept.
func TestVeryDeepTree(t *testing.T) {
	const depth = 1000
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range depth {
		for _, name := range []string{"directory", "beside"} {
			if err := unix.Mkdirat(fd, name, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		below, err := unix.Openat(fd, "directory", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		fd = below
	}
	unix.Close(fd)
	got, err := Walk(t.Context(), dir)
	if err != nil || got.Inodes != 2*depth+1 {
		t.Errorf("%+v, %v, want %d inodes", got, err, 2*depth+1)
	}
}

func TestMountsDoNotCount(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, elsewhere := t.TempDir(), t.TempDir()
		for _, name := range []string{"tmpfs", "bind"} {
			if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		write(t, filepath.Join(dir, "file"), 100)
		write(t, filepath.Join(elsewhere, "big"), 1<<20)
		mount := func(source, target, fsType string, flags uintptr) {
			t.Helper()
			if err := unix.Mount(source, target, fsType, flags, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
		}
		mount("tmpfs", filepath.Join(dir, "tmpfs"), "tmpfs", 0)
		write(t, filepath.Join(dir, "tmpfs", "big"), 1<<20)
		const want = 3 // the root, the file, and the bind mount's place before it is mounted
		for _, kernel := range []treewalk.Options{{}, nothingNew} {
			got, err := measure(t.Context(), dir, options{workers: 2, tree: kernel})
			if err != nil || got.Inodes != want || got.Bytes > 1<<19 {
				t.Errorf("with %+v: %+v, %v, want %d inodes", kernel, got, err, want)
			}
		}
		mount(elsewhere, filepath.Join(dir, "bind"), "", unix.MS_BIND)
		if got, err := Walk(t.Context(), dir); err != nil || got.Inodes != 2 || got.Bytes > 1<<19 {
			t.Errorf("with a bind mount of the same file system: %+v, %v, want 2 inodes", got, err)
		}
	})
}
