package localdiscovery_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/silentfuse"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/localdiscovery"
	"github.com/podvol/podvol/volume/objects"
)

// recorder keeps the reasons of events.
type recorder struct {
	mu      sync.Mutex
	reasons []string
}

func (r *recorder) Event(_ runtime.Object, _, reason, _ string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reasons = append(r.reasons, reason)
}

func (r *recorder) all() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.reasons, " ")
}

// kernelDisks is a directory on the kernel, and a discoverer of it.
func kernelDisks(t *testing.T) (dir string, store *objects.Store, events *recorder, d *localdiscovery.Discoverer) {
	t.Helper()
	mounts := table.Kernel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	store, events = objects.NewStore(), &recorder{}
	return dir, store, events, &localdiscovery.Discoverer{Objects: store, Mounts: mounts, NodeName: "node1", Events: events,
		Classes: []localdiscovery.Class{{Dir: dir, StorageClass: "local"}}}
}

// mountAt mounts with mount(2), on a directory that is made if there is none.
func mountAt(t *testing.T, source, path, fstype string, flags uintptr) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(path, 0o755), unix.Mount(source, path, fstype, flags, "")); err != nil {
		t.Fatalf("mount %s at %s: %v", source, path, err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

func unmount(t *testing.T, path string) {
	t.Helper()
	if err := unix.Unmount(path, 0); err != nil {
		t.Fatal(err)
	}
}

func discover(t *testing.T, d *localdiscovery.Discoverer) []localdiscovery.Found {
	t.Helper()
	found, err := d.Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// want checks what became of a path.
func want(t *testing.T, found []localdiscovery.Found, path string, state localdiscovery.State, why error) localdiscovery.Found {
	t.Helper()
	f := at(t, found, path)
	if f.State != state || why != nil && !errors.Is(f.Err, why) {
		t.Errorf("%s is %s: %v, want %s: %v", path, f.State, f.Err, state, why)
	}
	return f
}

// One file system that is mounted twice is offered once, whichever of the mounts
// comes first, and so are the directories of one, unless that is agreed to.
func TestKernelFileSystemIsOfferedOnce(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, _, _, d := kernelDisks(t)
		disk := filepath.Join(dir, "m-disk")
		mountAt(t, "tmpfs", disk, "tmpfs", 0)
		for _, name := range []string{"vol1", "vol2", "vol1/in"} {
			if err := os.Mkdir(filepath.Join(disk, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		mountAt(t, disk, filepath.Join(dir, "again"), "", unix.MS_BIND)
		mountAt(t, filepath.Join(disk, "vol1"), filepath.Join(dir, "vol1"), "", unix.MS_BIND)
		found := discover(t, d)
		first := want(t, found, filepath.Join(dir, "again"), localdiscovery.StateOffered, nil) // all of it, and first by name
		want(t, found, disk, localdiscovery.StateRefused, localdiscovery.ErrSeenTwice)
		want(t, found, filepath.Join(dir, "vol1"), localdiscovery.StateRefused, localdiscovery.ErrSeenTwice)
		unmount(t, first.Path)
		found = discover(t, d)
		if f := want(t, found, disk, localdiscovery.StateRefused, localdiscovery.ErrSeenTwice); f.Volume != first.Volume {
			t.Errorf("it is that of %q", f.Volume)
		}
		want(t, found, first.Path, localdiscovery.StateMissing, nil)

		// Directories of one file system.
		dir, store, _, d := kernelDisks(t)
		for _, name := range []string{"vol1", "vol2", "vol1/in"} {
			mountAt(t, filepath.Join(disk, name), filepath.Join(dir, strings.ReplaceAll(name, "/", "-")), "", unix.MS_BIND)
		}
		found = discover(t, d)
		want(t, found, filepath.Join(dir, "vol1"), localdiscovery.StateOffered, nil)
		want(t, found, filepath.Join(dir, "vol1-in"), localdiscovery.StateRefused, localdiscovery.ErrSeenTwice)
		want(t, found, filepath.Join(dir, "vol2"), localdiscovery.StateRefused, localdiscovery.ErrSeenTwice)
		d.Classes[0].ShareFileSystems = true
		found = discover(t, d)
		want(t, found, filepath.Join(dir, "vol1"), localdiscovery.StateKnown, nil)
		want(t, found, filepath.Join(dir, "vol1-in"), localdiscovery.StateRefused, localdiscovery.ErrSeenTwice)
		second := want(t, found, filepath.Join(dir, "vol2"), localdiscovery.StateOffered, nil)
		if id := stored(t, store, second.Volume).Annotations[localdiscovery.VolumeIDAnnotation]; !strings.HasSuffix(id, "/vol2") {
			t.Errorf("its id is %q", id)
		}
	})
}

// Another disk at the same path is another volume, and is not offered as long as
// the first one has the path; the first one, when it is back, is the same.
func TestKernelAnotherDiskInItsPlace(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, store, events, d := kernelDisks(t)
		path, aside := filepath.Join(dir, "disk"), filepath.Join(t.TempDir(), "aside")
		mountAt(t, "tmpfs", aside, "tmpfs", 0)
		mountAt(t, aside, path, "", unix.MS_BIND)
		volumeName := want(t, discover(t, d), path, localdiscovery.StateOffered, nil).Volume
		for range 2 {
			if f := want(t, discover(t, d), path, localdiscovery.StateKnown, nil); f.Volume != volumeName {
				t.Errorf("it is %q now", f.Volume)
			}
		}
		unmount(t, path)
		want(t, discover(t, d), path, localdiscovery.StateMissing, nil)
		note := stored(t, store, volumeName).Annotations[localdiscovery.MissingAnnotation]
		if !strings.Contains(note, "not there") {
			t.Errorf("the note says %q", note)
		}
		mountAt(t, "tmpfs", path, "tmpfs", 0)
		found := discover(t, d)
		var states []string
		for _, f := range found {
			states = append(states, string(f.State))
			if f.State == localdiscovery.StateRefused && (!errors.Is(f.Err, localdiscovery.ErrPathTaken) || f.Volume != volumeName) {
				t.Errorf("refused for %v", f.Err)
			}
		}
		if slices.Sort(states); !slices.Equal(states, []string{"Missing", "Refused"}) {
			t.Errorf("found %v", states)
		}
		if again := stored(t, store, volumeName).Annotations[localdiscovery.MissingAnnotation]; !strings.Contains(again, "another disk") || again[:20] != note[:20] {
			t.Errorf("the note says %q after %q", again, note)
		}
		version := stored(t, store, volumeName).ResourceVersion
		discover(t, d)
		if now := stored(t, store, volumeName).ResourceVersion; now != version {
			t.Error("it is written although nothing has changed")
		}
		unmount(t, path)
		mountAt(t, aside, path, "", unix.MS_BIND)
		if f := want(t, discover(t, d), path, localdiscovery.StateKnown, nil); f.Volume != volumeName {
			t.Errorf("it came back as %q", f.Volume)
		}
		if note, is := stored(t, store, volumeName).Annotations[localdiscovery.MissingAnnotation]; is {
			t.Errorf("the note still says %q", note)
		}
		if got := events.all(); got != "LocalVolumeMissing LocalVolumeMissing LocalVolumeBack" {
			t.Errorf("events: %s", got)
		}
		if all, err := store.List(t.Context(), "PersistentVolume", ""); err != nil || len(all) != 1 {
			t.Errorf("%d volumes, %v", len(all), err)
		}
	})
}

func TestKernelMountThatHidesAnother(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, _, _, d := kernelDisks(t)
		path := filepath.Join(dir, "disk")
		mountAt(t, "below", path, "tmpfs", 0)
		mountAt(t, "above", path, "tmpfs", 0)
		states := make(map[string]localdiscovery.State)
		for _, f := range discover(t, d) {
			states[f.Source] = f.State
		}
		if states["above"] != localdiscovery.StateOffered || states["below"] != localdiscovery.StateRefused {
			t.Errorf("%v", states)
		}
		// A mount over the directory hides all that is in it.
		mountAt(t, "cover", dir, "tmpfs", 0)
		for _, f := range discover(t, d) {
			if f.State == localdiscovery.StateOffered || f.State == localdiscovery.StateKnown {
				t.Errorf("%s is %s though it cannot be reached", f.Source, f.State)
			}
		}
		unmount(t, dir)
		want(t, discover(t, d)[:1], path, localdiscovery.StateKnown, nil)
	})
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func mkfs(t *testing.T, args ...string) {
	t.Helper()
	testtool.Need(t, args[0])
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

func TestKernelDevices(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, store, _, d := kernelDisks(t)
		path := func(name string) string { return filepath.Join(dir, name) }
		link(t, "/dev/null", path("null"))
		link(t, dir, path("directory"))
		link(t, "missing", path("nothing"))
		link(t, "loop", path("loop"))
		found, _ := d.Discover(t.Context()) // a loop of links cannot be followed
		for _, name := range []string{"null", "directory", "nothing"} {
			want(t, found, path(name), localdiscovery.StateRefused, localdiscovery.ErrNoVolume)
		}
		want(t, found, path("loop"), localdiscovery.StateFailed, unix.ELOOP)
		if !strings.HasSuffix(t.Name(), "/root") {
			return // no block devices here
		}
		os.Remove(path("loop"))
		disk := loopdev.New(t, 5<<20+512*3)
		link(t, disk.Path, path("disk"))
		link(t, disk.Path, path("other"))
		mounted := loopdev.New(t, 16<<20)
		mkfs(t, "mkfs.ext4", "-q", mounted.Path)
		mountAt(t, mounted.Path, t.TempDir(), "ext4", 0)
		link(t, mounted.Path, path("mounted"))
		swap := loopdev.New(t, 1<<20)
		mkfs(t, "mkswap", "-q", swap.Path)
		link(t, swap.Path, path("swap"))
		table := loopdev.New(t, 4<<20)
		writeTo(t, table.Path, 510, "\x55\xaa")
		writeTo(t, table.Path, 446, "\x80\x00\x02\x00\x83\x00\x00\x00\x01\x00\x00\x00\x08\x00\x00\x00")
		link(t, table.Path, path("table"))
		busy := loopdev.New(t, 1<<20)
		open, err := os.OpenFile(busy.Path, os.O_RDONLY|unix.O_EXCL, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		link(t, busy.Path, path("busy"))
		found = discover(t, d)
		first := want(t, found, path("disk"), localdiscovery.StateOffered, nil)
		want(t, found, path("other"), localdiscovery.StateRefused, localdiscovery.ErrSeenTwice)
		want(t, found, path("mounted"), localdiscovery.StateRefused, localdiscovery.ErrInUse)
		want(t, found, path("swap"), localdiscovery.StateRefused, localdiscovery.ErrInUse)
		want(t, found, path("table"), localdiscovery.StateRefused, localdiscovery.ErrPartitioned)
		want(t, found, path("busy"), localdiscovery.StateRefused, localdiscovery.ErrInUse)
		pv := stored(t, store, first.Volume)
		size := pv.Spec.Capacity.Storage().Value()
		if *pv.Spec.VolumeMode != v1.PersistentVolumeBlock || size != 5<<20+512*3 || pv.Spec.Local.FSType != nil || pv.Spec.Local.Path != path("disk") {
			t.Errorf("the volume is %+v of %d bytes", pv.Spec, size)
		}
		// Another disk under the same link.
		link(t, busy.Path, path("disk"))
		open.Close()
		for _, f := range discover(t, d) {
			if f.Path == path("disk") && f.State == localdiscovery.StateRefused && !errors.Is(f.Err, localdiscovery.ErrPathTaken) {
				t.Errorf("refused: %v", f.Err)
			}
			if f.Path == path("disk") && (f.State == localdiscovery.StateKnown || f.State == localdiscovery.StateOffered) {
				t.Errorf("another disk is taken for %s", f.Volume)
			}
		}
		if note := stored(t, store, first.Volume).Annotations[localdiscovery.MissingAnnotation]; !strings.Contains(note, path("other")) {
			t.Errorf("the note says %q", note) // it is still found there
		}
	})
}

func writeTo(t *testing.T, path string, offset int64, data string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte(data), offset); err != nil {
		t.Fatal(err)
	}
}

// A disk that the kernel calls something else after a reboot is the same volume.
func TestKernelDeviceIsRenamed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if !strings.HasSuffix(t.Name(), "/root") {
			if os.Geteuid() != 0 {
				t.Error("it is not root of its namespace")
			}
			return // no block devices here
		}
		dir, _, _, d := kernelDisks(t)
		d.Classes[0].VolumeMode, d.Classes[0].FSType, d.Classes[0].MountOptions = v1.PersistentVolumeFilesystem, "ext4", []string{"noatime"}
		backing, path := filepath.Join(t.TempDir(), "backing"), filepath.Join(dir, "disk")
		if err := errors.Join(os.WriteFile(backing, nil, 0o600), os.Truncate(backing, 1<<20)); err != nil {
			t.Fatal(err)
		}
		var first localdiscovery.Found
		var device string
		t.Run("before", func(t *testing.T) {
			device = loopdev.Of(t, backing, 0).Path
			link(t, device, path)
			first = want(t, discover(t, d), path, localdiscovery.StateOffered, nil)
			if first.Mode != v1.PersistentVolumeFilesystem || first.FSType != "ext4" {
				t.Errorf("%+v", first)
			}
		})
		taken := loopdev.New(t, 1<<20) // of the name that it had
		device = loopdev.Of(t, backing, 0).Path
		if device == taken.Path {
			t.Fatal("two devices of one name")
		}
		link(t, device, path)
		if f := want(t, discover(t, d), path, localdiscovery.StateKnown, nil); f.Volume != first.Volume {
			t.Errorf("it is %s now, and was %s", f.Volume, first.Volume)
		}
		pv, err := objects.Get[*v1.PersistentVolume](t.Context(), d.Objects, volume.NewObjectRef("PersistentVolume", "", first.Volume))
		if err != nil || *pv.Spec.Local.FSType != "ext4" || !slices.Equal(pv.Spec.MountOptions, []string{"noatime"}) {
			t.Errorf("%+v, %v", pv.Spec, err)
		}
	})
}

// What is on a device is the volume that it is, mounted or not, and a device that
// is one is not offered again by what is on it.
func TestKernelDeviceAndItsFileSystemAreOne(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if !strings.HasSuffix(t.Name(), "/root") {
			if os.Geteuid() != 0 {
				t.Error("it is not root of its namespace")
			}
			return // no block devices here
		}
		for _, fstype := range []string{"ext4", "xfs", "btrfs"} {
			t.Run(fstype, func(t *testing.T) {
				dir, _, _, d := kernelDisks(t)
				disk := loopdev.New(t, 512<<20)
				mkfs(t, "mkfs."+fstype, "-q", disk.Path)
				mounted, linked := filepath.Join(dir, "mounted"), filepath.Join(dir, "linked")
				mountAt(t, disk.Path, mounted, fstype, 0)
				link(t, disk.Path, linked)
				found := discover(t, d)
				first := want(t, found, mounted, localdiscovery.StateOffered, nil)
				want(t, found, linked, localdiscovery.StateRefused, nil)
				if first.FSType != fstype || first.Source != disk.Path || first.Capacity.Value() < 100<<20 || first.Capacity.Value() > 512<<20 {
					t.Errorf("%+v", first)
				}
				unmount(t, mounted)
				found = discover(t, d)
				if f := want(t, found, linked, localdiscovery.StateRefused, localdiscovery.ErrSeenTwice); f.Volume != first.Volume {
					t.Errorf("it is that of %q", f.Volume)
				}
				// The other way round.
				dir, _, _, d = kernelDisks(t)
				linked, mounted = filepath.Join(dir, "linked"), filepath.Join(dir, "mounted")
				link(t, disk.Path, linked)
				raw := want(t, discover(t, d), linked, localdiscovery.StateOffered, nil)
				mountAt(t, disk.Path, mounted, fstype, 0)
				found = discover(t, d)
				want(t, found, linked, localdiscovery.StateKnown, nil)
				want(t, found, mounted, localdiscovery.StateRefused, localdiscovery.ErrSeenTwice)
				if err := os.Remove(linked); err != nil {
					t.Fatal(err)
				}
				if f := want(t, discover(t, d), mounted, localdiscovery.StateRefused, localdiscovery.ErrSeenTwice); f.Volume != raw.Volume {
					t.Errorf("it is that of %q", f.Volume)
				}
			})
		}
	})
}

// A disk that does not answer holds up the others once, and is looked at when it
// answers.
func TestKernelDiskThatDoesNotAnswer(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, store, _, d := kernelDisks(t)
		d.Patience = 2 * time.Second // also for the good one, on a busy machine
		hung, good := filepath.Join(dir, "hung"), filepath.Join(dir, "good")
		if err := os.Mkdir(hung, 0o755); err != nil {
			t.Fatal(err)
		}
		silentfuse.Need(t)
		server, err := silentfuse.Mount("silent", hung)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			server.Close()
			_ = unix.Unmount(hung, unix.MNT_DETACH)
		})
		server.FallSilent()
		mountAt(t, "tmpfs", good, "tmpfs", 0)
		for range 3 {
			found, err := d.Discover(t.Context())
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer") {
				t.Errorf("err = %v", err)
			}
			want(t, found, hung, localdiscovery.StateFailed, context.DeadlineExceeded)
			if f := at(t, found, good); f.State != localdiscovery.StateOffered && f.State != localdiscovery.StateKnown {
				t.Errorf("the other is %+v", f)
			}
		}
		if all, err := store.List(t.Context(), "PersistentVolume", ""); err != nil || len(all) != 1 {
			t.Errorf("%d volumes, %v", len(all), err)
		}
	})
}
