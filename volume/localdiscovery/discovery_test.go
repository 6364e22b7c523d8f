package localdiscovery_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/localdiscovery"
	"github.com/podvol/podvol/volume/objects"
)

// disks is a directory with a fake mounter, and a discoverer of it.
func disks(t *testing.T) (dir string, fake *fakemount.Mounter, store *objects.Store, d *localdiscovery.Discoverer) {
	t.Helper()
	dir = t.TempDir()
	fake = fakemount.New()
	t.Cleanup(func() {
		if err := fake.Close(); err != nil {
			t.Error(err)
		}
	})
	store = objects.NewStore()
	return dir, fake, store, &localdiscovery.Discoverer{Objects: store, Mounts: fake.Table(), NodeName: "node1",
		Classes: []localdiscovery.Class{{Dir: dir, StorageClass: "local"}}}
}

// offered returns the names of the volumes that are, or were, offered, by path.
func offered(found []localdiscovery.Found) (names []string) {
	for _, f := range found {
		if f.State == localdiscovery.StateOffered || f.State == localdiscovery.StateKnown {
			names = append(names, f.Volume)
		}
	}
	return names
}

func at(t *testing.T, found []localdiscovery.Found, path string) localdiscovery.Found {
	t.Helper()
	for _, f := range found {
		if f.Path == path {
			return f
		}
	}
	t.Fatalf("nothing is found at %s: %+v", path, found)
	return localdiscovery.Found{}
}

func mountDisk(t *testing.T, fake *fakemount.Mounter, path string, options ...string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := mount.Mount(t.Context(), fake, mount.Request{Source: "tmpfs", Target: path, FSType: "tmpfs", Options: options}); err != nil {
		t.Fatal(err)
	}
}

func stored(t *testing.T, store *objects.Store, name string) *v1.PersistentVolume {
	t.Helper()
	pv, err := objects.Get[*v1.PersistentVolume](t.Context(), store, volume.NewObjectRef("PersistentVolume", "", name))
	if err != nil {
		t.Fatal(err)
	}
	return pv
}

func TestEveryMountPointIsOffered(t *testing.T) {
	dir, fake, store, d := disks(t)
	mountDisk(t, fake, filepath.Join(dir, "a"))
	mountDisk(t, fake, filepath.Join(dir, "b"), "ro")
	mountDisk(t, fake, filepath.Join(dir, "a", "below"))
	if err := os.Mkdir(filepath.Join(dir, "plain"), 0o755); err != nil {
		t.Fatal(err)
	}
	found, err := d.Discover(t.Context())
	names := offered(found)
	if err != nil || len(names) != 2 {
		t.Fatalf("offered %v, %v; want two", names, err)
	}
	if plain := at(t, found, filepath.Join(dir, "plain")); !errors.Is(plain.Err, localdiscovery.ErrNoVolume) {
		t.Errorf("a plain directory is %+v", plain)
	}
	pv := stored(t, store, names[0])
	if pv.Spec.Local == nil || pv.Spec.Local.Path != filepath.Join(dir, "a") || pv.Spec.StorageClassName != "local" ||
		pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimRetain || pv.Spec.Capacity.Storage().Sign() <= 0 {
		t.Errorf("the volume is %+v", pv.Spec)
	}
	for node, want := range map[string]bool{"node1": true, "node2": false} {
		if got, err := claimbinding.MatchesNode(pv, nil, node); got != want || err != nil {
			t.Errorf("reachable from %s: %v, %v", node, got, err)
		}
	}
	if modes := stored(t, store, names[1]).Spec.AccessModes; len(modes) != 1 || modes[0] != v1.ReadOnlyMany {
		t.Errorf("what can only be read has the modes %v", modes)
	}
	// Again, and by another process: the same volumes, which keep their claims.
	bound := pv.DeepCopy()
	bound.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ops", Name: "data"}
	if _, err := store.Update(t.Context(), bound); err != nil {
		t.Fatal(err)
	}
	again, err := (&localdiscovery.Discoverer{Objects: store, Mounts: fake.Table(), NodeName: "node1", Classes: []localdiscovery.Class{{Dir: dir + "/"}}}).Discover(t.Context())
	if err != nil || strings.Join(offered(again), " ") != strings.Join(names, " ") || stored(t, store, names[0]).Spec.ClaimRef == nil {
		t.Errorf("offered %v, %v; want %v as before", again, err, names)
	}
	if other, err := (&localdiscovery.Discoverer{Objects: store, Mounts: fake.Table(), NodeName: "node2", Classes: d.Classes}).Discover(t.Context()); err != nil || offered(other)[0] == names[0] {
		t.Errorf("another node's volumes are %v, %v", other, err)
	}
}

func TestOneThatCannotBeOfferedDoesNotHinderTheOthers(t *testing.T) {
	dir, fake, _, d := disks(t)
	mountDisk(t, fake, filepath.Join(dir, "a"))
	mountDisk(t, fake, filepath.Join(dir, "b"))
	d.Objects = refusing{d.Objects}
	found, err := d.Discover(t.Context())
	if names := offered(found); len(names) != 1 || !errors.Is(err, errFull) || !strings.Contains(err.Error(), filepath.Join(dir, "a")) {
		t.Errorf("offered %+v, %v", found, err)
	}
	d.Classes = []localdiscovery.Class{{Dir: "relative"}}
	if _, err := d.Discover(t.Context()); err == nil {
		t.Error("a relative directory is accepted")
	}
}

var errFull = errors.New("the store is full")

// refusing is a store that refuses the volumes of mount points "a".
type refusing struct{ localdiscovery.Objects }

func (r refusing) Create(ctx context.Context, o metav1.Object) (metav1.Object, error) {
	if pv, ok := o.(*v1.PersistentVolume); ok && filepath.Base(pv.Spec.Local.Path) == "a" {
		return nil, errFull
	}
	return r.Objects.Create(ctx, o)
}

func TestRunOffersWhatIsMountedLater(t *testing.T) {
	dir, fake, store, d := disks(t)
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan volume.ObjectRef, 10)
	defer store.WatchKind("PersistentVolume", func(ref volume.ObjectRef) { seen <- ref })()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	mountDisk(t, fake, filepath.Join(dir, "late"))
	ref := <-seen
	if pv := stored(t, store, ref.Name); pv.Spec.Local.Path != filepath.Join(dir, "late") {
		t.Errorf("offered %+v", pv.Spec)
	}
	// One that was deleted is offered anew.
	if err := store.Delete(ctx, ref, objects.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := store.Get(ctx, ref); err == nil {
			break
		}
		<-seen
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A plan finds what Discover finds, and changes nothing: neither what is new nor
// what is missing.
func TestAPlanChangesNothing(t *testing.T) {
	dir, fake, store, d := disks(t)
	gone := filepath.Join(dir, "gone")
	mountDisk(t, fake, gone)
	if _, err := d.Discover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := fake.Unmount(gone); err != nil {
		t.Fatal(err)
	}
	mountDisk(t, fake, filepath.Join(dir, "new"))
	before := storedIn(t, store)
	planned, err := d.Plan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if after := storedIn(t, store); len(after) != 1 || !reflect.DeepEqual(before, after) {
		t.Errorf("it has changed %v to %v", before, after)
	}
	for path, want := range map[string]localdiscovery.State{gone: localdiscovery.StateMissing, filepath.Join(dir, "new"): localdiscovery.StateOffered} {
		if f := at(t, planned, path); f.State != want || f.Volume == "" {
			t.Errorf("%s: %+v, want %s", path, f, want)
		}
	}
	found, err := d.Discover(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(planned, found) {
		t.Errorf("planned %+v, found %+v", planned, found)
	}
	if len(storedIn(t, store)) != 2 {
		t.Error("the new one is not offered")
	}
}
