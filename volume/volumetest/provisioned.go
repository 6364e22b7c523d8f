package volumetest

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/tree"
)

// claimed is the storage of one claim on a node.
type claimed struct {
	node    *Node
	storage StorageCase
	claim   string
	// pv is what Provision has returned, as a controller binds it; nil: nothing.
	pv *v1.PersistentVolume
}

// storageNode returns a new node for storage.
func (k *kit) storageNode(c StorageCase) *Node {
	k.Helper()
	return k.node(Case{Name: c.Name, Prepare: c.Prepare})
}

// peer returns another node on which the same storage is made, as that of a
// second controller.
func (n *Node) peer(k *kit, c StorageCase) *Node {
	k.Helper()
	return k.nodeWith(Case{Name: c.Name, Prepare: c.Prepare}, n.Dir)
}

func (n *Node) claimed(c StorageCase, claim string) *claimed {
	return &claimed{node: n, storage: c, claim: claim}
}

// on is the same storage on a restarted node.
func (s *claimed) on(n *Node) *claimed {
	again := *s
	again.node = n
	return &again
}

// options are the claim's wishes, new each time.
func (s *claimed) options() volume.VolumeOptions {
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: metav1.NamespaceDefault, Name: s.claim, UID: types.UID("uid-of-" + s.claim)}}
	claim.Spec = v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, VolumeMode: new(v1.PersistentVolumeFilesystem),
		StorageClassName: new("class"),
		Resources:        v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(oldSize)}},
	}
	options := volume.VolumeOptions{PVName: "pvc-uid-of-" + s.claim, PVC: claim, MountOptions: s.storage.MountOptions,
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete}
	if s.storage.Parameters != nil {
		options.Parameters = s.storage.Parameters(s.node)
	}
	return options
}

// provision may be called from any goroutine.
func (s *claimed) provision(ctx context.Context) (*v1.PersistentVolume, error) {
	p, _ := volume.AsProvisionable(s.node.plugin)
	options := s.options()
	given := s.options()
	provisioner, err := p.NewProvisioner(options)
	if err != nil {
		return nil, fmt.Errorf("NewProvisioner: %w", err)
	}
	pv, err := provisioner.Provision(ctx, nil, nil)
	if diff := cmp.Diff(given, options); diff != "" {
		s.node.T().Errorf("Provision has changed its options (-before +after):\n%s", diff)
	}
	if err != nil {
		return nil, err
	}
	if pv == nil {
		return nil, fmt.Errorf("neither a PersistentVolume nor an error is returned by Provision")
	}
	return s.bound(pv), nil
}

// bound is the PersistentVolume as a controller stores it.
func (s *claimed) bound(pv *v1.PersistentVolume) *v1.PersistentVolume {
	pv = pv.DeepCopy()
	pv.UID = types.UID("uid-of-" + pv.Name)
	if pv.Spec.ClaimRef == nil {
		claim := s.options().PVC
		pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	}
	return pv
}

// mustProvision fails if what is there by now is not returned again.
func (s *claimed) mustProvision(k *kit) {
	k.Helper()
	pv, err := s.provision(k.Context())
	if err != nil {
		k.Fatalf("Provision for claim %s: %v", s.claim, err)
	}
	if s.pv != nil {
		if diff := cmp.Diff(s.pv, pv); diff != "" {
			k.Errorf("provisioned again, the PersistentVolume is another (-first +second):\n%s", diff)
		}
	}
	s.pv = pv
}

// delete may be called from any goroutine.
func (s *claimed) delete(ctx context.Context) error {
	p, _ := volume.AsDeletable(s.node.plugin)
	d, err := p.NewDeleter(toDelete(volume.NewSpecFromPersistentVolume(s.pv, false)))
	if err != nil {
		return fmt.Errorf("NewDeleter: %w", err)
	}
	return d.Delete(ctx)
}

// mustDelete deletes, also what is gone.
func (s *claimed) mustDelete(k *kit) {
	k.Helper()
	for range 2 {
		if err := s.delete(k.Context()); err != nil {
			k.Fatalf("Delete of the storage of claim %s: %v", s.claim, err)
		}
		s.node.assertNothingHeld(k)
	}
}

// volume is the storage in a pod.
func (s *claimed) volume() *podVolume {
	s.node.T().Helper()
	spec := volume.NewSpecFromPersistentVolume(s.pv.DeepCopy(), false)
	return s.node.volumeOf(spec, s.node.pod("user-of-"+s.claim, spec))
}

// dataFile is in a directory, so that a deletion has some work.
const dataFile = ownName + "deep/er/data"

func (s *claimed) data() string { return "what the pod of claim " + s.claim + " has written" }

// write makes a pod write into the storage.
func (s *claimed) write(k *kit) {
	k.Helper()
	v := s.volume()
	v.mustSetUp()
	tree.Write(k, v.GetPath(), map[string]string{dataFile: s.data()})
	v.mustTearDown()
}

// assertData fails unless a pod sees what was written.
func (s *claimed) assertData(k *kit) {
	k.Helper()
	v := s.volume()
	v.mustSetUp()
	v.assertFile(filepath.Join(v.GetPath(), dataFile), File{Content: s.data()})
	v.mustTearDown()
}

// assertNoData fails if the storage still shows what was written.
func (s *claimed) assertNoData(k *kit) {
	k.Helper()
	v := s.volume()
	if err := v.setUp(k.Context()); err == nil {
		if _, err := os.Stat(filepath.Join(v.GetPath(), dataFile)); err == nil {
			k.Errorf("the storage of claim %s shows after Delete what was written into it", s.claim)
		}
	}
	v.mustTearDown()
}

// assertDeleted fails unless the node's Dir is as it was before the storage
// was made, but for what the case keeps.
func (s *claimed) assertDeleted(k *kit, before map[string]string) {
	k.Helper()
	after := tree.Snapshot(k, s.node.Dir)
	if !s.storage.Keeps {
		tree.AssertSame(k, "after Delete, what lies where the storage was", before, after)
		return
	}
	if !s.isKept(k) {
		k.Errorf("after Delete, the data of claim %s is nowhere, although the case keeps it", s.claim)
	}
	tree.AssertKept(k, "after Delete, what lies where the storage was", before, after)
}

// isKept looks for the data.
func (s *claimed) isKept(k *kit) (found bool) {
	k.Helper()
	err := filepath.WalkDir(s.node.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		found = found || string(content) == s.data()
		return err
	})
	if err != nil {
		k.Errorf("looking for kept data: %v", err)
	}
	return found
}

// neighbour is storage of another claim, in use, and somebody's files beside it.
func (n *Node) neighbour(k *kit, c StorageCase) *claimed {
	k.Helper()
	other := n.claimed(c, "neighbour")
	other.mustProvision(k)
	other.write(k)
	n.Write(map[string]string{own("somebodys/file"): "data"})
	return other
}
