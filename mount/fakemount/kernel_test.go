package fakemount_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// The words of a step: an action and paths below the world's base.
//
//	tmpfs DIR, tmpfs-ro DIR       mount a new tmpfs
//	bind SRC DST, rbind SRC DST
//	ro P, rw P                    remount the file system
//	bind-ro P, bind-rw P          remount the mount alone
//	rbind-rro SRC DST, rro P      read-only with all mounts below
//	umount P, lazy P
//	mkdir P, file P, link DST P   ordinary calls
type step string

// visible is a mount as compared between the worlds. Devices are numbered in
// the order of their appearance.
type visible struct {
	Target, Root, FSType, Options, Super string
	Device                               int
}

// world is the kernel or the fake.
type world interface {
	mount(source, target, fstype string, options ...string) error
	unmount(target string, lazy bool) error
	mounts() ([]mount.Entry, error)
}

type fakeWorld struct{ *fakemount.Mounter }

func (w fakeWorld) mount(source, target, fstype string, options ...string) error {
	return w.Mount(source, target, fstype, options)
}

func (w fakeWorld) unmount(target string, lazy bool) error {
	var o mount.UnmountOptions
	if lazy {
		o.LazyAfter = time.Nanosecond
	}
	_, err := w.UnmountContext(context.Background(), target, o)
	return err
}

func (w fakeWorld) mounts() ([]mount.Entry, error) { return w.Table().All() }

// kernelWorld makes the system calls by itself, so that the fake is compared
// with the kernel and not with this package.
type kernelWorld struct{}

func (kernelWorld) mount(source, target, fstype string, options ...string) error {
	flags := map[string]uintptr{
		"bind": unix.MS_BIND, "rbind": unix.MS_BIND | unix.MS_REC, "remount": unix.MS_REMOUNT, "ro": unix.MS_RDONLY, "rw": 0,
	}
	var all uintptr
	for _, o := range options {
		all |= flags[o]
	}
	recursive := slices.Contains(options, "ro=recursive")
	if all&unix.MS_REMOUNT == 0 || !recursive {
		if err := unix.Mount(source, target, fstype, all, ""); err != nil || !recursive {
			return err
		}
	}
	return unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

func (kernelWorld) unmount(target string, lazy bool) error {
	if lazy {
		return unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	return unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
}

func (kernelWorld) mounts() ([]mount.Entry, error) {
	infos, err := mountinfo.GetMounts(nil)
	var entries []mount.Entry
	for _, i := range infos {
		entries = append(entries, mount.Entry{
			ID: i.ID, Device: unix.Mkdev(uint32(i.Major), uint32(i.Minor)), Root: i.Root, Target: i.Mountpoint,
			FSType: i.FSType, Options: strings.Split(i.Options, ","), SuperOptions: strings.Split(i.VFSOptions, ","),
		})
	}
	return entries, err
}

func take(w world, base string, s step) error {
	words := strings.Fields(string(s))
	at := filepath.Join(base, words[len(words)-1])
	other := filepath.Join(base, words[1])
	switch words[0] {
	case "tmpfs":
		return w.mount("tmpfs", at, "tmpfs")
	case "tmpfs-ro":
		return w.mount("tmpfs", at, "tmpfs", "ro")
	case "bind", "rbind":
		return w.mount(other, at, "", words[0])
	case "ro", "rw":
		return w.mount("", at, "", "remount", words[0])
	case "bind-ro":
		return w.mount("", at, "", "remount", "bind", "ro")
	case "rbind-rro":
		return w.mount(other, at, "", "rbind", "ro=recursive")
	case "rro":
		return w.mount("", at, "", "remount", "bind", "ro=recursive")
	case "bind-rw":
		return w.mount("", at, "", "remount", "bind", "rw")
	case "umount":
		return w.unmount(at, false)
	case "lazy":
		return w.unmount(at, true)
	case "mkdir":
		return os.Mkdir(at, 0o755)
	case "file":
		return os.WriteFile(at, []byte(words[1]), 0o644)
	case "link":
		return os.Symlink(words[1], at)
	}
	return fmt.Errorf("no such step: %s", s)
}

// seen are the mounts below base, by target, those of one target from the
// bottom. A tmpfs's size, which the kernel chooses, is left out.
func seen(t failer, w world, base string) []visible {
	t.Helper()
	entries, err := w.mounts()
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(entries, func(a, b mount.Entry) int { return strings.Compare(a.Target, b.Target) })
	devices := map[uint64]int{}
	found := []visible{}
	for _, e := range entries {
		if e.Target != base && !strings.HasPrefix(e.Target, base+"/") {
			continue
		}
		if _, ok := devices[e.Device]; !ok {
			devices[e.Device] = len(devices)
		}
		found = append(found, visible{
			Target: strings.TrimPrefix(e.Target, base), Root: e.Root, FSType: e.FSType, Device: devices[e.Device],
			Options: strings.Join(e.Options, ","), Super: e.SuperOptions[0],
		})
	}
	return found
}

type failer interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

// compare takes the steps in both worlds, each on a tmpfs of its own, and
// fails at the first difference of errno or mount table.
func compare(t failer, dir string, steps []step) (kernelBase, fakeBase string, fake *fakemount.Mounter, clean func()) {
	t.Helper()
	fake = fakemount.New()
	kernelBase, fakeBase = filepath.Join(dir, "kernel"), filepath.Join(dir, "fake")
	clean = func() {
		for unix.Unmount(kernelBase, unix.MNT_DETACH) == nil {
			continue
		}
		if err := fake.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
		if err := errors.Join(unix.Rmdir(kernelBase), unix.Rmdir(fakeBase)); err != nil {
			t.Fatalf("what was hidden is not back: %v", err)
		}
	}
	start := []step{"tmpfs .", "mkdir a", "mkdir a/x", "mkdir b", "mkdir b/y", "mkdir c", "file 1 f", "file 2 g", "link a la"}
	for _, d := range []string{kernelBase, fakeBase} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i, s := range append(start, steps...) {
		kernelErr := take(kernelWorld{}, kernelBase, s)
		if errors.Is(kernelErr, unix.EROFS) {
			break // the fake does not enforce read-only
		}
		fakeErr := take(fakeWorld{fake}, fakeBase, s)
		if k, f := errnoIn(kernelErr), errnoIn(fakeErr); k != f || (kernelErr == nil) != (fakeErr == nil) {
			clean()
			t.Fatalf("step %d of %q, %q: the kernel says %v, the fake %v", i, steps, s, kernelErr, fakeErr)
		}
		if diff := cmp.Diff(seen(t, kernelWorld{}, kernelBase), seen(t, fakeWorld{fake}, fakeBase)); diff != "" {
			clean()
			t.Fatalf("after step %d of %q, %q (-kernel +fake):\n%s", i, steps, s, diff)
		}
	}
	return kernelBase, fakeBase, fake, clean
}

func errnoIn(err error) unix.Errno {
	errno, _ := errors.AsType[unix.Errno](err)
	return errno
}

func TestFakeIsAsTheKernel(t *testing.T) {
	tests := map[string]struct {
		steps []step
		// shows are files and what they hold in the end; empty: is missing.
		shows map[string]string
	}{
		"tmpfs over content": {
			steps: []step{"file old a/old", "tmpfs a", "file new a/new"},
			shows: map[string]string{"a/new": "new", "a/old": ""},
		},
		"content comes back": {
			steps: []step{"file old a/old", "tmpfs a", "file new a/new", "umount a"},
			shows: map[string]string{"a/new": "", "a/old": "old"},
		},
		"stacked": {
			steps: []step{"tmpfs a", "file 1 a/1", "tmpfs a", "file 2 a/2", "umount a"},
			shows: map[string]string{"a/1": "1", "a/2": ""},
		},
		"unmounted twice":     {steps: []step{"tmpfs a", "umount a", "umount a"}},
		"not mounted":         {steps: []step{"umount a", "umount a/x", "umount nothing", "umount nothing/x", "umount f/x", "lazy a"}},
		"a link is no mount":  {steps: []step{"tmpfs a", "umount la", "umount a"}},
		"missing target":      {steps: []step{"tmpfs nothing", "tmpfs nothing/x", "tmpfs f/x", "bind a nothing"}},
		"missing source":      {steps: []step{"bind nothing a", "bind nothing/x a", "bind f/x a"}},
		"kinds do not match":  {steps: []step{"bind a f", "bind f a", "tmpfs f"}},
		"files":               {steps: []step{"bind f g"}, shows: map[string]string{"g": "1"}},
		"files unmounted":     {steps: []step{"bind f g", "umount g"}, shows: map[string]string{"g": "2"}},
		"links in the parent": {steps: []step{"tmpfs la/x", "umount a/x", "bind la b", "umount b"}},
		"bind": {
			steps: []step{"file in a/in", "bind a b"},
			shows: map[string]string{"b/in": "in", "b/y": ""},
		},
		"bind of a directory in a mount": {steps: []step{"tmpfs a", "mkdir a/d", "bind a/d b", "bind b c"}},
		"a bind outlives its source": {
			steps: []step{"tmpfs a", "file in a/in", "bind a b", "umount a"},
			shows: map[string]string{"b/in": "in", "a/in": ""},
		},
		"a bind of what is covered later": {
			steps: []step{"file in a/x/in", "bind a/x c", "tmpfs a"},
			shows: map[string]string{"c/in": "in", "a/x/in": ""},
		},
		"bind on itself":      {steps: []step{"file in a/in", "bind a a"}, shows: map[string]string{"a/in": "in"}},
		"bind of the stack":   {steps: []step{"tmpfs a", "bind a a", "bind a b", "umount a", "umount a"}},
		"bind inherits":       {steps: []step{"tmpfs-ro a", "bind a b", "bind-rw b", "bind b c"}},
		"bind read-only":      {steps: []step{"tmpfs a", "bind a b", "bind-ro b", "bind b c", "bind-rw c"}},
		"remount":             {steps: []step{"tmpfs a", "bind a b", "ro a", "rw a", "bind-ro a", "rw a"}},
		"remount of no mount": {steps: []step{"ro a", "bind-ro a", "rw nothing", "bind a b", "bind-ro b/x"}},
		"a parent is busy":    {steps: []step{"tmpfs a", "mkdir a/d", "tmpfs a/d", "umount a", "umount a/d", "umount a"}},
		"busy below a stack":  {steps: []step{"tmpfs a", "tmpfs a", "mkdir a/d", "bind a/d a/d", "umount a", "umount a/d", "umount a", "umount a"}},
		"covered mounts": {
			steps: []step{"tmpfs a/x", "file in a/x/in", "tmpfs a", "umount a/x", "umount a", "umount a/x"},
		},
		"a mount below a bind is not at the source": {
			steps: []step{"bind a b", "tmpfs b/x", "umount a/x", "umount b", "umount b/x", "umount b"},
		},
		"both sides of a bind": {
			steps: []step{"file o a/x/o", "bind a b", "tmpfs b/x", "tmpfs a/x", "umount b/x", "umount a/x"},
			shows: map[string]string{"a/x/o": "o", "b/x/o": "o"},
		},
		"a bind leaves submounts out": {steps: []step{"tmpfs a/x", "bind a b", "umount b/x", "umount b"}},
		"rbind":                       {steps: []step{"tmpfs a/x", "file in a/x/in", "rbind a b", "umount b", "umount a/x"}, shows: map[string]string{"b/x/in": "in"}},
		"rbind deep":                  {steps: []step{"tmpfs a/x", "mkdir a/x/z", "bind c a/x/z", "tmpfs a/x/z", "rbind a b", "umount b/x/z", "umount b/x/z", "umount b/x", "umount b"}},
		"rbind below itself":          {steps: []step{"tmpfs a", "mkdir a/d", "rbind a a/d", "umount a", "umount a/d"}},
		"rbind, read-only throughout": {steps: []step{"tmpfs a/x", "mkdir a/x/z", "bind c a/x/z", "rbind-rro a b", "bind-rw b/x", "bind b/x c"}},
		"read-only throughout":        {steps: []step{"tmpfs a", "mkdir a/d", "tmpfs a/d", "bind a b", "rro a", "bind-rw a", "rro nothing", "rro b/x"}},
		"lazy":                        {steps: []step{"tmpfs a", "mkdir a/d", "tmpfs a/d", "lazy a", "umount a/d"}},
		"lazy keeps what is bound":    {steps: []step{"tmpfs a", "file in a/in", "bind a b", "mkdir a/d", "tmpfs a/d", "lazy a"}, shows: map[string]string{"b/in": "in"}},
		"dots":                        {steps: []step{"tmpfs a", "tmpfs a/../b", "bind a/../b c", "umount a/..//b/"}},
	}
	nstest.Run(t, func(t *testing.T) {
		for name, tc := range tests {
			t.Run(name, func(t *testing.T) {
				kernelBase, fakeBase, _, clean := compare(t, realTempDir(t), tc.steps)
				defer clean()
				for name, want := range tc.shows {
					for _, base := range []string{kernelBase, fakeBase} {
						got, err := os.ReadFile(filepath.Join(base, name))
						if string(got) != want || (err != nil) != (want == "") {
							t.Errorf("%s/%s holds %q, %v; want %q", filepath.Base(base), name, got, err, want)
						}
					}
				}
			})
		}
	})
}

// TestFakeIsAsTheKernelAtRandom looks for sequences that nobody thought of.
func TestFakeIsAsTheKernelAtRandom(t *testing.T) {
	paths := rapid.SampledFrom([]string{"a", "a/x", "b", "b/y", "b/x", "c", "c/x", "la/x", "f", "g", "c/../a", "nothing", "f/x"})
	steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		action := rapid.SampledFrom([]string{
			"tmpfs", "bind", "bind", "rbind", "rbind-rro", "rro", "bind-ro", "bind-rw", "umount", "umount", "umount", "lazy", "mkdir",
		}).Draw(t, "action")
		words := []string{action, paths.Draw(t, "path")}
		if action == "bind" || action == "rbind" || action == "rbind-rro" {
			words = append(words, paths.Draw(t, "target"))
		}
		return step(strings.Join(words, " "))
	}), 1, 12)
	nstest.Run(t, func(t *testing.T) {
		dir := realTempDir(t)
		rapid.Check(t, func(t *rapid.T) {
			_, _, _, clean := compare(t, dir, steps.Draw(t, "steps"))
			clean()
		})
	})
}

func realTempDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
