package volumetest

import (
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-cmp/cmp"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/sim"
	"github.com/podvol/podvol/volume/volumetest/internal/tree"
)

// claimed is the storage of one claim on a node.
type claimed struct {
	*sim.Claim
	node    *Node
	storage StorageCase
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
	class := sim.Class{MountOptions: c.MountOptions}
	if c.Parameters != nil {
		class.Parameters = func() map[string]string { return c.Parameters(n) }
	}
	return &claimed{n.sim.Claim(claim, oldSize, class), n, c}
}

// on is the same storage on a restarted node.
func (s *claimed) on(n *Node) *claimed {
	again := n.claimed(s.storage, s.Name)
	again.PV = s.PV
	return again
}

// mustProvision fails if what is there by now is not returned again.
func (s *claimed) mustProvision(k *kit) {
	k.Helper()
	pv, err := s.Provision(k.Context())
	if err != nil {
		k.Fatalf("Provision for claim %s: %v", s.Name, err)
	}
	if s.PV != nil {
		if diff := cmp.Diff(s.PV, pv); diff != "" {
			k.Errorf("provisioned again, the PersistentVolume is another (-first +second):\n%s", diff)
		}
	}
	s.PV = pv
}

// mustDelete deletes, also what is gone.
func (s *claimed) mustDelete(k *kit) {
	k.Helper()
	for range 2 {
		if err := s.Delete(k.Context()); err != nil {
			k.Fatalf("Delete of the storage of claim %s: %v", s.Name, err)
		}
		s.node.sim.AssertNothingHeld(k)
	}
}

// volume is the storage in a pod.
func (s *claimed) volume() *podVolume {
	s.node.T().Helper()
	spec := volume.NewSpecFromPersistentVolume(s.PV.DeepCopy(), false)
	return s.node.volumeOf(spec, s.node.pod("user-of-"+s.Name, spec))
}

// dataFile is in a directory, so that a deletion has some work.
const dataFile = ownName + "deep/er/data"

func (s *claimed) data() string { return "what the pod of claim " + s.Name + " has written" }

// write makes a pod write into the storage.
func (s *claimed) write(k *kit) {
	k.Helper()
	v := s.volume()
	v.MustSetUp()
	tree.Write(k, v.GetPath(), map[string]string{dataFile: s.data()})
	v.MustTearDown()
}

// assertData fails unless a pod sees what was written.
func (s *claimed) assertData(k *kit) {
	k.Helper()
	v := s.volume()
	v.MustSetUp()
	v.assertFile(filepath.Join(v.GetPath(), dataFile), File{Content: s.data()})
	v.MustTearDown()
}

// assertNoData fails if the storage still shows what was written.
func (s *claimed) assertNoData(k *kit) {
	k.Helper()
	v := s.volume()
	if err := v.SetUpWithDevice(k.Context()); err == nil {
		if _, err := os.Stat(filepath.Join(v.GetPath(), dataFile)); err == nil {
			k.Errorf("the storage of claim %s shows after Delete what was written into it", s.Name)
		}
	}
	v.MustTearDown()
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
		k.Errorf("after Delete, the data of claim %s is nowhere, although the case keeps it", s.Name)
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
