package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/plugins/hostpath"
)

// shelf is a root directory with claims, for one command after the other.
type shelf struct {
	t       *testing.T
	root    string
	mounted []embedded.Mounted
	asked   func() // for what is mounted
}

const shelfManifest = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: made}
provisioner: kubernetes.io/host-path
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: kept}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: static
  nfs: {server: 127.0.0.1, path: /kept}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: ops}
spec: {storageClassName: made, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: static, namespace: ops}
spec: {storageClassName: static, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: waiting, namespace: ops}
spec: {storageClassName: static, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`

func newShelf(t *testing.T) *shelf {
	s := &shelf{t: t, root: t.TempDir()}
	s.open(nil, func(c *embedded.Cluster) {
		set, err := manifest.Loader{NodeName: "edge1"}.Decode("test", []byte(shelfManifest))
		if err != nil {
			t.Fatal(err)
		}
		declared, err := set.Objects(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Apply(t.Context(), declared...); err != nil {
			t.Fatal(err)
		}
		s.run(c)
	})
	return s
}

// open has f use the claims, before anything runs.
func (s *shelf) open(only func(volume.ObjectRef) bool, f func(*embedded.Cluster)) {
	s.t.Helper()
	fake := fakemount.New()
	defer fake.Close()
	c, err := embedded.Open(s.t.Context(), embedded.Config{
		Dir: filepath.Join(s.root, "podvol", "claims"), NodeName: "edge1", Only: only,
		Plugins: plugins.All(hostpath.New(hostpath.Config{Provision: hostpath.ProvisionConfig{Bases: []hostpath.Base{hostpath.DefaultBase(s.root)}}})),
		Host:    volume.Host{RootDir: s.root, Mounter: fake},
		Mounted: func(context.Context) ([]embedded.Mounted, error) {
			if s.asked != nil {
				s.asked()
			}
			return s.mounted, nil
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			s.t.Error(err)
		}
	}()
	f(c)
}

// run lets the cluster work until there is nothing to do.
func (s *shelf) run(c *embedded.Cluster) {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	if err := c.Idle(ctx); err != nil {
		s.t.Error(err)
	}
	stop()
	if err := <-ended; err != nil {
		s.t.Error(err)
	}
}

// delete deletes one object, and all that follows from that and nothing else.
func (s *shelf) delete(kind, namespace, name string, only ...string) (err error) {
	s.t.Helper()
	s.open(func(ref volume.ObjectRef) bool {
		for _, n := range append(only, name) {
			if ref.Name == n {
				return true
			}
		}
		return false
	}, func(c *embedded.Cluster) {
		if err = c.Delete(s.t.Context(), volume.NewObjectRef(kind, namespace, name)); err == nil {
			c.PodsComplete()
			s.run(c)
		}
	})
	return err
}

func (s *shelf) claim(name string) (claim *v1.PersistentVolumeClaim) {
	s.t.Helper()
	s.open(nil, func(c *embedded.Cluster) {
		claim, _ = objects.Get[*v1.PersistentVolumeClaim](s.t.Context(), c.Objects(), volume.NewObjectRef("PersistentVolumeClaim", "ops", name))
	})
	return claim
}

func (s *shelf) volume(name string) (pv *v1.PersistentVolume) {
	s.t.Helper()
	s.open(nil, func(c *embedded.Cluster) {
		pv, _ = objects.Get[*v1.PersistentVolume](s.t.Context(), c.Objects(), volume.NewObjectRef("PersistentVolume", "", name))
	})
	return pv
}

const claimsKind, volumesKind = "PersistentVolumeClaim", "PersistentVolume"

// The volume of a claim that is deleted goes with its directory where its policy
// is Delete, and a claim that waits is left alone.
func TestDeleteAClaimWithItsStorage(t *testing.T) {
	s := newShelf(t)
	name := s.claim("data").Spec.VolumeName
	dir := s.volume(name).Spec.HostPath.Path
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.delete(claimsKind, "ops", "data", name); err != nil {
		t.Fatal(err)
	}
	if s.claim("data") != nil || s.volume(name) != nil {
		t.Errorf("left: %+v, %+v", s.claim("data"), s.volume(name))
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
	if err := s.delete(claimsKind, "ops", "data"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("the second time: %v", err)
	}
}

// What is retained can be offered again, to whomever it fits, and not before its
// claim has left it.
func TestReleaseAVolume(t *testing.T) {
	s := newShelf(t)
	owner := "static"
	if s.claim(owner).Spec.VolumeName == "" {
		owner = "waiting"
	}
	release := func() (err error) {
		s.open(func(ref volume.ObjectRef) bool { return ref.Name == "kept" }, func(c *embedded.Cluster) {
			if err = c.Release(t.Context(), "kept"); err == nil {
				s.run(c)
			}
		})
		return err
	}
	refused := func(err error) bool { return errors.Is(err, embedded.ErrRefused) }
	if err := release(); !refused(err) {
		t.Errorf("release a bound volume: %v", err)
	}
	if err := s.delete(volumesKind, "", "kept"); !refused(err) {
		t.Errorf("delete a bound volume: %v", err)
	}
	if err := s.delete(claimsKind, "ops", owner, "kept"); err != nil {
		t.Fatal(err)
	}
	if pv := s.volume("kept"); pv.Status.Phase != v1.VolumeReleased {
		t.Fatalf("it is %s", pv.Status.Phase)
	}
	s.mounted = []embedded.Mounted{{Pod: types.NamespacedName{Namespace: "ops", Name: "web"}, PodUID: "u", Volume: "kept"}}
	if !errors.Is(release(), embedded.ErrInUse) {
		t.Error("a volume that is mounted is released")
	}
	if !errors.Is(s.delete(volumesKind, "", "kept"), embedded.ErrInUse) {
		t.Error("a volume that is mounted is deleted")
	}
	s.mounted = nil
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if pv := s.volume("kept"); pv.Status.Phase != v1.VolumeAvailable || pv.Spec.ClaimRef != nil {
		t.Fatalf("it is %s, of %v", pv.Status.Phase, pv.Spec.ClaimRef)
	}
	s.open(nil, s.run)
	if ref := s.volume("kept").Spec.ClaimRef; ref == nil || ref.Name == owner {
		t.Errorf("it is that of %v", ref)
	}
}

func TestDeleteNothingThatIsMounted(t *testing.T) {
	s := newShelf(t)
	web := types.NamespacedName{Namespace: "ops", Name: "web"}
	s.mounted = []embedded.Mounted{{Pod: web, PodUID: "u", Volume: "other", Claim: types.NamespacedName{Namespace: "ops", Name: "data"}}}
	inUse := s.delete(claimsKind, "ops", "data")
	if !errors.Is(inUse, embedded.ErrInUse) || !strings.Contains(inUse.Error(), "is in use by pod "+web.String()+":") {
		t.Errorf("err = %v", inUse)
	}
	if s.claim("data").DeletionTimestamp != nil {
		t.Error("its deletion has begun")
	}
}

// A volume whose claim was deleted while nobody could reclaim it goes with its
// storage, and one that was never a claim's leaves its storage alone.
func TestDeleteAVolume(t *testing.T) {
	s := newShelf(t)
	name := s.claim("data").Spec.VolumeName
	dir := s.volume(name).Spec.HostPath.Path
	// By a program that does not know all pods.
	s.open(nil, func(c *embedded.Cluster) {
		claim := volume.NewObjectRef(claimsKind, "ops", "data")
		stored, err := objects.Get[*v1.PersistentVolumeClaim](t.Context(), c.Objects(), claim)
		if err != nil {
			t.Fatal(err)
		}
		stored = stored.DeepCopy()
		stored.Finalizers = nil
		if _, err := c.Objects().Update(t.Context(), stored); err != nil {
			t.Fatal(err)
		}
		if err := c.Objects().Delete(t.Context(), claim, objects.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		s.run(c)
	})
	if pv := s.volume(name); pv.Status.Phase != v1.VolumeReleased {
		t.Fatalf("it is %s", pv.Status.Phase)
	}
	if err := s.delete(volumesKind, "", name); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); s.volume(name) != nil || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %+v; its directory: %v", s.volume(name), err)
	}
}

// A volume that is forgotten goes, and its directory stays; not while a claim has
// it, or a pod.
func TestForgetAVolume(t *testing.T) {
	s := newShelf(t)
	name := s.claim("data").Spec.VolumeName
	dir := s.volume(name).Spec.HostPath.Path
	forget := func() (err error) {
		s.open(func(ref volume.ObjectRef) bool { return ref.Name == name }, func(c *embedded.Cluster) {
			if err = c.Forget(t.Context(), name); err == nil {
				c.PodsComplete()
				s.run(c)
			}
		})
		return err
	}
	if !errors.Is(forget(), embedded.ErrRefused) {
		t.Error("the volume of a claim is forgotten")
	}
	if err := s.delete(claimsKind, "ops", "data"); err != nil { // which leaves the volume alone
		t.Fatal(err)
	}
	s.mounted = []embedded.Mounted{{Pod: types.NamespacedName{Namespace: "ops", Name: "web"}, PodUID: "u", Volume: name}}
	if !errors.Is(forget(), embedded.ErrInUse) {
		t.Error("a volume that is mounted is forgotten")
	}
	s.mounted = nil
	if err := forget(); err != nil {
		t.Fatal(err)
	}
	if s.volume(name) != nil {
		t.Errorf("left: %+v", s.volume(name))
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("its directory: %v", err)
	}
	if err := forget(); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("the second time: %v", err)
	}
}

// What the controller writes between the look at an object and its deletion does not hinder
// that. Another object of the name stays.
func TestDeletionBesideAnotherWriter(t *testing.T) {
	claim, pv := volume.NewObjectRef("PersistentVolumeClaim", "ops", "data"), volume.NewObjectRef("PersistentVolume", "", "kept")
	ops := map[string]func(*embedded.Cluster) error{
		"delete a claim":  func(c *embedded.Cluster) error { return c.Delete(t.Context(), claim) },
		"delete a volume": func(c *embedded.Cluster) error { return c.Delete(t.Context(), pv) },
		"forget a volume": func(c *embedded.Cluster) error { return c.Forget(t.Context(), pv.Name) },
	}
	for name, op := range ops {
		ref := pv
		if name == "delete a claim" {
			ref = claim
		}
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, made anew %v", name, again), func(t *testing.T) {
				s := newShelf(t)
				s.delete("PersistentVolumeClaim", "ops", "static", "kept", "waiting")
				s.delete("PersistentVolumeClaim", "ops", "waiting", "kept", "static")
				s.open(nil, func(c *embedded.Cluster) {
					s.asked = func() {
						s.asked = nil
						writeBeside(t, c, ref, again)
					}
					err := op(c)
					object, getErr := c.Objects().Get(t.Context(), ref)
					switch {
					case again && (!errors.Is(err, volume.ErrNotFound) || getErr != nil || object.GetDeletionTimestamp() != nil):
						t.Errorf("%v; the new one is %v, %v", err, object, getErr)
					case !again && (err != nil || getErr == nil && object.GetDeletionTimestamp() == nil):
						t.Errorf("%v; it is %v", err, object)
					}
				})
			})
		}
	}
}

// writeBeside writes an object, or replaces it by another of its name.
func writeBeside(t *testing.T, c *embedded.Cluster, ref volume.ObjectRef, again bool) {
	t.Helper()
	store := c.Objects().(objects.Writer)
	stored, err := c.Objects().Get(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	object := stored.(runtime.Object).DeepCopyObject().(metav1.Object) // the store would see no change in its own
	object.SetAnnotations(map[string]string{"written": "meanwhile"})
	if again {
		object.SetFinalizers(nil)
	}
	if object, err = store.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	if object.GetResourceVersion() == stored.GetResourceVersion() {
		t.Fatalf("%s was not written", ref)
	}
	if !again {
		return
	}
	if err := store.Delete(t.Context(), ref, objects.Preconditions{UID: object.GetUID()}); err != nil {
		t.Fatal(err)
	}
	object.SetUID("another")
	object.SetResourceVersion("")
	if _, err := store.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}
