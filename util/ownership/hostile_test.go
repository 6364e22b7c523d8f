package ownership

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

func give(t testing.TB, root string, gid uint32, o Options, k kernel) {
	t.Helper()
	if err := set(t.Context(), root, Group{ID: gid}, o, k); err != nil {
		t.Fatal(err)
	}
}

func TestMountsAreLeftAlone(t *testing.T) {
	onKernels(t, func(t *testing.T, k kernel, gid uint32) {
		root, elsewhere := t.TempDir(), t.TempDir()
		makeFiles(t, root, file{"tmpfs", dir | 0o755}, file{"bind", dir | 0o755}, file{"bound file", 0o600}, file{"file", 0o600})
		makeFiles(t, elsewhere, file{"dir/file", 0o604}, file{"file", 0o604})
		mount := func(source, target, fsType string, flags uintptr) {
			t.Helper()
			target = filepath.Join(root, target)
			if err := unix.Mount(source, target, fsType, flags, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
		}
		mount("tmpfs", "tmpfs", "tmpfs", 0)
		makeFiles(t, root, file{"tmpfs/file", 0o604})
		untouched := []string{filepath.Join(root, "tmpfs/file")}
		if !k.tree.WithoutMountIDs || !k.tree.WithoutOpenat2 { // which notice other file systems only
			mount(elsewhere, "bind", "", unix.MS_BIND)
			mount(filepath.Join(elsewhere, "file"), "bound file", "", unix.MS_BIND)
			untouched = append(untouched, filepath.Join(elsewhere, "file"), filepath.Join(elsewhere, "dir/file"))
		}
		give(t, root, gid, Options{}, k)
		for _, path := range untouched {
			if got := look(t, path); got.mode.Perm() != 0o604 {
				t.Errorf("%s is %v now", path, got.mode)
			}
		}
		if got := look(t, filepath.Join(root, "file")); got != (shown{0o660, gid}) {
			t.Errorf("the file besides is %v of %d", got.mode, got.gid)
		}
	})
}

func TestHardLinks(t *testing.T) {
	onKernels(t, func(t *testing.T, k kernel, gid uint32) {
		root := t.TempDir()
		makeFiles(t, root, file{"a", 0o600}, file{"d", dir | 0o700})
		if err := os.Link(filepath.Join(root, "a"), filepath.Join(root, "d/b")); err != nil {
			t.Fatal(err)
		}
		give(t, root, gid, Options{}, k)
		if got := look(t, filepath.Join(root, "d/b")); got != (shown{0o660, gid}) {
			t.Errorf("%v of %d", got.mode, got.gid)
		}
	})
}

func TestRootMayBeALink(t *testing.T) {
	onKernels(t, func(t *testing.T, k kernel, gid uint32) {
		base := t.TempDir()
		makeFiles(t, base, file{"tree/file", 0o600})
		if err := os.Symlink("tree", filepath.Join(base, "link")); err != nil {
			t.Fatal(err)
		}
		give(t, filepath.Join(base, "link"), gid, Options{}, k)
		if got := look(t, filepath.Join(base, "tree/file")); got != (shown{0o660, gid}) {
			t.Errorf("%v of %d", got.mode, got.gid)
		}
	})
}

// Somebody keeps exchanging what is in the tree for links that lead out of it,
// and for files with other permissions.
func TestRacerCannotLeadOutside(t *testing.T) {
	onKernels(t, func(t *testing.T, k kernel, gid uint32) {
		base := t.TempDir()
		root, outside := filepath.Join(base, "tree"), filepath.Join(base, "outside")
		makeFiles(t, outside, file{"file", 0o600}, file{"dir/file", 0o600})
		makeFiles(t, root, file{"d/file", 0o600}, file{"d/dir/file", 0o600}, file{"d/suid", fs.ModeSetuid | 0o755}, file{"d/plain", 0o600})
		for name, target := range map[string]string{"d/to file": "file", "d/to dir": "dir"} {
			if err := os.Symlink(filepath.Join(outside, target), filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
		}
		before := map[string]fs.FileMode{"d/file": 0o600, "d/suid": fs.ModeSetuid | 0o755, "d/plain": 0o600}
		stop, stopped := make(chan struct{}), make(chan struct{})
		var swaps atomic.Int64
		kept := map[string]*os.File{}
		for name := range before {
			kept[name] = openPath(t, filepath.Join(root, name))
		}
		go func() {
			defer close(stopped)
			pairs := [][2]string{{"d/file", "d/to file"}, {"d/dir", "d/to dir"}, {"d/suid", "d/plain"}}
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				p := pairs[n%len(pairs)]
				if unix.Renameat2(unix.AT_FDCWD, filepath.Join(root, p[0]), unix.AT_FDCWD, filepath.Join(root, p[1]), unix.RENAME_EXCHANGE) == nil {
					swaps.Add(1)
				}
			}
		}()
		for round := 0; round < 200 || swaps.Load() < 100; round++ {
			for name, mode := range before { // so that there is always something to change
				if err := kept[name].Chmod(mode); err != nil {
					t.Fatal(err)
				}
			}
			give(t, root, gid, Options{}, k)
			if info, err := kept["d/plain"].Stat(); err != nil || info.Mode()&fs.ModeSetuid != 0 {
				t.Fatalf("%v: a file got another one's mode: %v", err, info.Mode())
			}
		}
		close(stop)
		<-stopped
		for path, mode := range map[string]fs.FileMode{"file": 0o600, "dir": dir | 0o755, "dir/file": 0o600} {
			if got := look(t, filepath.Join(outside, path)); got.mode != mode {
				t.Errorf("outside, %s is %v", path, got.mode)
			}
		}
	})
}

func openPath(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// The root changes last, so that a walk that ended early is taken up again.
func TestInterruptedWalkDoesNotLookFinished(t *testing.T) {
	onKernels(t, func(t *testing.T, k kernel, gid uint32) {
		root := t.TempDir()
		makeFiles(t, root, file{"d/file", 0o600})
		if err := os.Chmod(root, 0o700); err != nil {
			t.Fatal(err)
		}
		cause := errors.New("the agent stops")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if err := set(ctx, root, Group{ID: gid}, Options{OnRootMismatch: true}, k); !errors.Is(err, cause) {
			t.Errorf("err = %v, want the cause", err)
		}
		if got := look(t, root); got.mode != dir|0o700 {
			t.Errorf("the root is %v already", got.mode)
		}
		give(t, root, gid, Options{OnRootMismatch: true}, k)
		if got := look(t, filepath.Join(root, "d/file")); got != (shown{0o660, gid}) {
			t.Errorf("taken up again, a file is %v of %d", got.mode, got.gid)
		}
	})
}

func TestOnRootMismatchLooksAtTheRootOnly(t *testing.T) {
	onKernels(t, func(t *testing.T, k kernel, gid uint32) {
		root := t.TempDir()
		makeFiles(t, root, file{"file", 0o600})
		give(t, root, gid, Options{}, k)
		wrong := func() {
			t.Helper()
			if err := os.Chmod(filepath.Join(root, "file"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		wrong()
		give(t, root, gid, Options{OnRootMismatch: true}, k)
		if got := look(t, filepath.Join(root, "file")); got.mode != 0o600 {
			t.Errorf("the file was changed to %v although the root is right", got.mode)
		}
		for _, mode := range []fs.FileMode{setgid | 0o750, 0o770, setgid | 0o707} {
			wrong()
			if err := os.Chmod(root, mode); err != nil {
				t.Fatal(err)
			}
			give(t, root, gid, Options{OnRootMismatch: true}, k)
			if got := look(t, filepath.Join(root, "file")); got.mode != 0o660 {
				t.Errorf("the file was left %v although the root was %v", got.mode, mode)
			}
		}
	})
}

func TestWhatIsRightIsNotWrittenTo(t *testing.T) {
	onKernels(t, func(t *testing.T, k kernel, gid uint32) {
		root := t.TempDir()
		makeRules(t, root)
		changed := func() (times []string) {
			for _, r := range append(rules[:len(rules):len(rules)], rules[0]) {
				var st unix.Stat_t
				if err := unix.Lstat(filepath.Join(root, r.path), &st); err != nil {
					t.Fatal(err)
				}
				times = append(times, fmt.Sprint(r.path, st.Ctim))
			}
			return times
		}
		give(t, root, gid, Options{}, k)
		before := changed()
		give(t, root, gid, Options{}, k)
		if after := changed(); strings.Join(after, "\n") != strings.Join(before, "\n") {
			t.Errorf("times of change:\n%v\nbefore:\n%v", after, before)
		}
	})
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which it takes less than a second
		root := t.TempDir()
		makeFiles(t, root, file{"a/b", 0o600}, file{"c", 0o600})
		var reported []int64
		o := Options{Progress: func(done int64) { reported = append(reported, done) }}
		gid := uint32(os.Getegid())
		if err := Set(t.Context(), root, Group{ID: gid}, o); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(reported); got != "[0 4]" {
			t.Errorf("reported %s, want nothing done and then all 4", got)
		}
		reported = nil
		o.OnRootMismatch = true
		if err := Set(t.Context(), root, Group{ID: gid}, o); err != nil || len(reported) != 0 {
			t.Errorf("with a right root, %v was reported, %v", reported, err)
		}
	})
}

func TestProgressIsReportedEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(change)
		c.newVisitor()
		c.newVisitor()
		var reported []int64
		stop := c.report(func(done int64) { reported = append(reported, done) })
		for _, v := range c.visitors {
			time.Sleep(progressEvery)
			synctest.Wait()
			v.done.Add(5)
		}
		stop()
		if got := fmt.Sprint(reported); got != "[0 0 5 10]" {
			t.Errorf("reported %s", got)
		}
	})
}

func TestGroupThatIsNotMappedIsNamed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		root := t.TempDir()
		makeFiles(t, root, file{"file", 0o600})
		const unmapped = 4_000_111
		err := Set(t.Context(), root, Group{ID: unmapped}, Options{})
		if ownGroup(t) != uint32(os.Getegid()) { // root of the machine, who may use any
			if err != nil {
				t.Error(err)
			}
			return
		}
		failure, ok := errors.AsType[*Error](err)
		if !ok || failure.Path != filepath.Join(root, "file") || !strings.Contains(err.Error(), "group id 4000111 is not mapped") {
			t.Errorf("err = %v", err)
		}
	})
}

func TestReadOnlyFilesystemIsNamed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		root := t.TempDir()
		if err := unix.Mount("tmpfs", root, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(root, unix.MNT_DETACH) })
		makeFiles(t, root, file{"file", 0o600})
		if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		err := Set(t.Context(), root, Group{ID: uint32(os.Getegid())}, Options{})
		if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), "read-only") {
			t.Errorf("err = %v", err)
		}
	})
}

func TestImmutableFilesAreLeftAlone(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		root := t.TempDir()
		makeFiles(t, root, file{"immutable", 0o604}, file{"other", 0o600})
		f := openPath(t, filepath.Join(root, "immutable"))
		const immutable = 0x10 // FS_IMMUTABLE_FL
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
			// Only root of the machine may, and not on every file system.
			if err := Set(t.Context(), root, Group{ID: uint32(os.Getegid())}, Options{}); err != nil {
				t.Error(err)
			}
			return
		}
		t.Cleanup(func() { unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0) })
		gid := ownGroup(t)
		give(t, root, gid, Options{}, kernel{fchmodat2: true})
		if got := look(t, filepath.Join(root, "other")); got != (shown{0o660, gid}) {
			t.Errorf("the file besides is %v of %d", got.mode, got.gid)
		}
		if got := look(t, filepath.Join(root, "immutable")); got.mode != 0o604 {
			t.Errorf("the immutable file is %v", got.mode)
		}
	})
}
