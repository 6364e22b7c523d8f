package localdiscovery_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/localdiscovery"
	"github.com/podvol/podvol/volume/objects"
)

// Whatever disks are mounted where and in which order, by whom and how often they
// are looked for: each disk has one volume at most, no path has two, no volume
// ever means another disk, none goes by itself, and what is said of each is true.
func TestDisksComeAndGo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "disks")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		fake := fakemount.New()
		defer fake.Close()
		store := objects.NewStore()
		first := make(map[string]string) // path by volume and disk
		mounted := make(map[string][]string)
		paths := []string{"a", "b", "c"}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			path := filepath.Join(dir, rapid.SampledFrom(paths).Draw(t, "path"))
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1:
				disk := fmt.Sprintf("/dev/sd%c", 'a'+rapid.IntRange(0, 3).Draw(t, "disk"))
				if top(mounted, path) == "source:ext4:"+disk {
					continue // the kernel calls that busy
				}
				if err := os.MkdirAll(path, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := mount.Mount(t.Context(), fake, mount.Request{Source: disk, Target: path, FSType: "ext4"}); err != nil {
					t.Fatal(err)
				}
				mounted[path] = append(mounted[path], disk)
			case 2:
				if n := len(mounted[path]); n > 0 {
					if err := fake.Unmount(path); err != nil {
						t.Fatal(err)
					}
					mounted[path] = mounted[path][:n-1]
				}
			case 3: // an administrator gives up a disk
				for _, pv := range storedIn(t, store) {
					if pv.Spec.Local.Path == path {
						if err := store.Delete(t.Context(), volume.NewObjectRef("PersistentVolume", "", pv.Name), objects.Preconditions{}); err != nil {
							t.Fatal(err)
						}
						delete(first, pv.Name)
					}
				}
			case 4:
				d := &localdiscovery.Discoverer{Objects: store, Mounts: fake.Table(), NodeName: "node1", Classes: []localdiscovery.Class{{Dir: dir}}}
				found, err := d.Discover(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				checkVolumes(t, store, first, mounted)
				checkFound(t, store, found, mounted)
			}
		}
	})
}

// tester is a *testing.T or a *rapid.T.
type tester interface {
	Context() context.Context
	Fatal(...any)
}

func storedIn(t tester, store *objects.Store) []*v1.PersistentVolume {
	all, err := objects.List[*v1.PersistentVolume](t.Context(), store, "PersistentVolume", metav1.NamespaceAll)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// top is the disk that is seen at a path.
func top(mounted map[string][]string, path string) string {
	if disks := mounted[path]; len(disks) > 0 {
		return "source:ext4:" + disks[len(disks)-1]
	}
	return ""
}

func checkVolumes(t *rapid.T, store *objects.Store, first map[string]string, mounted map[string][]string) {
	disks, paths, names := make(map[string]bool), make(map[string]bool), make(map[string]bool)
	for _, pv := range storedIn(t, store) {
		disk, path := pv.Annotations[localdiscovery.VolumeIDAnnotation], pv.Spec.Local.Path
		if disks[disk] || paths[path] {
			t.Fatalf("%s at %s has two volumes", disk, path)
		}
		disks[disk], paths[path], names[pv.Name] = true, true, true
		if was, known := first[pv.Name]; known && was != path+" "+disk {
			t.Fatalf("%s was %s and is %s %s", pv.Name, was, path, disk)
		}
		first[pv.Name] = path + " " + disk
		if isHere := top(mounted, path) == disk; isHere == isMissing(pv) {
			t.Fatalf("%s is at %s: %v, and the note says %q", disk, path, isHere, pv.Annotations[localdiscovery.MissingAnnotation])
		}
	}
	for name := range first {
		if !names[name] {
			t.Fatalf("%s has gone by itself", name)
		}
	}
	for path := range mounted {
		if disk := top(mounted, path); disk != "" && !disks[disk] && !paths[path] {
			t.Fatalf("%s at %s is not offered", disk, path)
		}
	}
}

func checkFound(t *rapid.T, store *objects.Store, found []localdiscovery.Found, mounted map[string][]string) {
	for _, f := range found {
		here := top(mounted, f.Path)
		switch f.State {
		case localdiscovery.StateOffered, localdiscovery.StateKnown:
			if f.ID != here || f.Err != nil || f.Volume == "" {
				t.Fatalf("%+v, and %s is there", f, here)
			}
		case localdiscovery.StateMissing:
			if f.ID == here || f.Err == nil {
				t.Fatalf("%+v is there", f)
			}
		case localdiscovery.StateRefused:
			if f.Err == nil {
				t.Fatalf("%+v", f)
			}
		default:
			t.Fatalf("%+v", f)
		}
	}
}
