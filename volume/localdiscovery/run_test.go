package localdiscovery_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/localdiscovery"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/release"
	"github.com/podvol/podvol/volume/plugins/local"
)

// running runs a discoverer until the test ends, and returns what waits until the
// stored volumes are as wished.
func running(t *testing.T, store *objects.Store, d *localdiscovery.Discoverer) (until func(what string, ok func([]*v1.PersistentVolume) bool)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan struct{}, 1)
	stop := store.WatchKind("PersistentVolume", func(volume.ObjectRef) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(what string, ok func([]*v1.PersistentVolume) bool) {
		t.Helper()
		for {
			all, err := objects.List[*v1.PersistentVolume](t.Context(), store, "PersistentVolume", metav1.NamespaceAll)
			if err != nil {
				t.Fatalf("until %s: %v", what, err)
			}
			if ok(all) {
				return
			}
			select {
			case <-changed:
			case <-t.Context().Done():
				t.Fatalf("it never happened that %s", what)
			}
		}
	}
}

// detach unmounts what somebody may look at this very moment.
func detach(t *testing.T, path string) {
	t.Helper()
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
}

func byPath(all []*v1.PersistentVolume, path string) *v1.PersistentVolume {
	for _, pv := range all {
		if pv.Spec.Local != nil && pv.Spec.Local.Path == path {
			return pv
		}
	}
	return nil
}

func isMissing(pv *v1.PersistentVolume) bool {
	return pv != nil && pv.Annotations[localdiscovery.MissingAnnotation] != ""
}

// Whatever appears is offered when it appears: the directory itself, a mount, a
// link, what a link leads to.
func TestKernelRunFollowsWhatHappens(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, store, _, d := kernelDisks(t)
		disks := filepath.Join(dir, "not", "yet")
		d.Classes[0].Dir = disks
		until := running(t, store, d)
		path := filepath.Join(disks, "a")
		mountAt(t, "tmpfs", path, "tmpfs", 0) // makes the directory, too
		until("a mount is offered", func(all []*v1.PersistentVolume) bool { return byPath(all, path) != nil })
		detach(t, path)
		until("it is missing", func(all []*v1.PersistentVolume) bool { return isMissing(byPath(all, path)) })
		if !strings.HasSuffix(t.Name(), "/root") {
			return // no block devices here
		}
		disk := loopdev.New(t, 1<<20)
		dev, linked := filepath.Join(dir, "dev"), filepath.Join(disks, "b")
		link(t, filepath.Join(dev, "by-id", "disk"), linked)
		if err := os.MkdirAll(filepath.Join(dev, "by-id"), 0o755); err != nil {
			t.Fatal(err)
		}
		link(t, "../sdx", filepath.Join(dev, "by-id", "disk"))
		link(t, disk.Path, filepath.Join(dev, "sdx"))
		until("a device is offered", func(all []*v1.PersistentVolume) bool { return byPath(all, linked) != nil })
		if err := os.Remove(filepath.Join(dev, "sdx")); err != nil {
			t.Fatal(err)
		}
		until("the device is missing", func(all []*v1.PersistentVolume) bool { return isMissing(byPath(all, linked)) })
		link(t, disk.Path, filepath.Join(dev, "sdx"))
		until("the device is back", func(all []*v1.PersistentVolume) bool {
			pv := byPath(all, linked)
			return pv != nil && !isMissing(pv)
		})
		// One that is in use is offered once it is not.
		used, usedPath := loopdev.New(t, 16<<20), filepath.Join(disks, "c")
		mkfs(t, "mkfs.ext4", "-q", used.Path)
		mounted := filepath.Join(t.TempDir(), "mounted")
		mountAt(t, used.Path, mounted, "ext4", 0)
		link(t, used.Path, usedPath)
		formatted, formattedPath := loopdev.New(t, 1<<20), filepath.Join(disks, "d")
		busy, err := os.OpenFile(formatted.Path, os.O_RDWR|unix.O_EXCL, 0)
		if err != nil {
			t.Fatal(err)
		}
		link(t, formatted.Path, formattedPath)
		last := loopdev.New(t, 1<<20)
		link(t, last.Path, filepath.Join(disks, "e"))
		until("the last is offered", func(all []*v1.PersistentVolume) bool {
			if byPath(all, usedPath) != nil || byPath(all, formattedPath) != nil {
				t.Error("a device is offered that is in use")
			}
			return byPath(all, filepath.Join(disks, "e")) != nil
		})
		detach(t, mounted)
		until("it is unmounted", func(all []*v1.PersistentVolume) bool { return byPath(all, usedPath) != nil })
		busy.Close()
		until("it is closed", func(all []*v1.PersistentVolume) bool { return byPath(all, formattedPath) != nil })
	})
}

// A disk goes round: offered, claimed, left, emptied, offered anew, without
// what the first claim has written.
func TestKernelDiskGoesRound(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, store, _, d := kernelDisks(t)
		d.Classes[0].ReclaimPolicy = v1.PersistentVolumeReclaimDelete
		path := filepath.Join(dir, "disk")
		mountAt(t, "tmpfs", path, "tmpfs", 0)
		until := running(t, store, d)
		first := controllerFor(t, store)
		claim := &v1.PersistentVolumeClaim{}
		claim.Namespace, claim.Name = "ops", "data"
		claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
		claim.Spec.StorageClassName = new("local")
		claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: *stored(t, store, firstOf(t, until, path)).Spec.Capacity.Storage()}
		if _, err := store.Create(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		until("it is bound", func(all []*v1.PersistentVolume) bool { return all[0].Status.Phase == v1.VolumeBound })
		uid := stored(t, store, firstOf(t, until, path)).UID
		if err := os.WriteFile(filepath.Join(path, "secret"), []byte("data"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := store.Delete(t.Context(), volume.NewObjectRef("PersistentVolumeClaim", "ops", "data"), objects.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		until("another volume is offered", func(all []*v1.PersistentVolume) bool {
			pv := byPath(all, path)
			if pv == nil || pv.UID == uid {
				return false
			}
			if _, err := os.Stat(filepath.Join(path, "secret")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the next claim can read it: %v", err)
			}
			return pv.Spec.ClaimRef == nil
		})
		first()
	})
}

func firstOf(t *testing.T, until func(string, func([]*v1.PersistentVolume) bool), path string) (name string) {
	t.Helper()
	until("it is offered", func(all []*v1.PersistentVolume) bool {
		if pv := byPath(all, path); pv != nil {
			name = pv.Name
		}
		return name != ""
	})
	return name
}

// controllerFor runs a controller with a plugin that cleans, until stopped.
func controllerFor(t *testing.T, store *objects.Store) (stop func()) {
	t.Helper()
	releases := &release.Verifier{Objects: store}
	host := &volume.Host{RootDir: t.TempDir(), NodeName: "node1", Mounter: host.New(host.Config{}), Releases: releases}
	plugins, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{
		local.New(local.Config{Clean: local.CleanConfig{Action: local.CleanDelete, Below: []string{"/"}}})}, host)
	if err != nil {
		t.Fatal(err)
	}
	releases.Plugins = plugins
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: store, Plugins: plugins}).Run(ctx)
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A disk whose cleaning was cut off is not offered, and is cleaned to the end by
// the next controller.
func TestKernelCleaningIsCutOff(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir, store, _, d := kernelDisks(t)
		d.Classes[0].ReclaimPolicy = v1.PersistentVolumeReclaimDelete
		path := filepath.Join(dir, "disk")
		mountAt(t, "tmpfs", path, "tmpfs", 0)
		const files = 30_000
		var pv *v1.PersistentVolume
		for left := 0; left == 0; left = len(entriesIn(t, path)) { // until one is cut off
			for n := range files {
				if err := unix.Mknod(filepath.Join(path, strconv.Itoa(n)), unix.S_IFREG|0o600, 0); err != nil {
					t.Fatal(err)
				}
			}
			pv = stored(t, store, discover(t, d)[0].Volume)
			pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ops", Name: "data", UID: "claim-that-is-gone"}
			if _, err := store.Update(t.Context(), pv); err != nil {
				t.Fatal(err)
			}
			full := sizeOf(t, path)
			stop := controllerFor(t, store)
			for sizeOf(t, path) == full { // until it has begun
				runtime.Gosched()
			}
			stop()
		}
		if f := want(t, discover(t, d), path, localdiscovery.StateKnown, nil); f.Volume != pv.Name || stored(t, store, pv.Name).UID != pv.UID {
			t.Errorf("it is offered anew: %+v", f)
		}
		until := running(t, store, d)
		stop := controllerFor(t, store)
		until("it is offered anew", func(all []*v1.PersistentVolume) bool {
			now := byPath(all, path)
			return now != nil && now.UID != pv.UID
		})
		stop()
		if left := len(entriesIn(t, path)); left > 0 {
			t.Errorf("%d files are left", left)
		}
	})
}

// sizeOf is that of a directory, which tells how many entries one on tmpfs has.
func sizeOf(t *testing.T, dir string) int64 {
	t.Helper()
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func entriesIn(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}
