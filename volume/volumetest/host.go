package volumetest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
)

// NodeName is the name of the node that [NewHost] makes.
const NodeName types.NodeName = "node1"

// Host is a fake node. Its role fields (Secrets, ConfigMaps, Tokens,
// TrustBundles, Allocatable, Events, HostFiles) are filled with what the other methods
// feed; set one to nil to take that role away. Releases says of every
// PersistentVolume that its data may be destroyed; nobody runs Pods but on a
// [Node]. Its methods are safe for concurrent use; its fields must be set before
// the host is used.
type Host struct {
	volume.Host
	// Fake is the mounter, the same as GetMounter returns; nil on a [Node] that
	// mounts for real.
	Fake *fakemount.Mounter
	// NodeAllocatable is what the role Allocatable answers.
	NodeAllocatable v1.ResourceList
	// Now is the clock that tokens expire by; time.Now at first.
	Now func() time.Time

	t       testing.TB
	objects *objectMap
	events  eventLog
	faults  fault.Injector[RoleCall]
	tokens  serial
}

var _ volume.VolumeHost = (*Host)(nil)

// NewHost returns a node whose root directory, with an empty directory "pods",
// is below t.TempDir. At the end of the test its mounter is closed, and the
// test fails if an object that a role had returned was changed.
func NewHost(t testing.TB) *Host {
	t.Helper()
	fake := fakemount.New()
	// What was kept beside the mounts a plugin would take for its own.
	fake.KeepIn(t.TempDir())
	h := newHost(t, newRoot(t, t.TempDir()), fake, &objectMap{})
	h.Fake = fake
	t.Cleanup(func() {
		h.objects.assertUnchanged(t)
		if err := h.Fake.Close(); err != nil {
			t.Errorf("closing the fake mounter: %v", err)
		}
	})
	return h
}

// newRoot makes dir a root directory, with an empty directory "pods".
func newRoot(t testing.TB, dir string) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(root, "pods"), 0o750); err != nil {
		t.Fatal(err)
	}
	return root
}

// newHost returns a host on what may outlive a host: root, mounter, objects.
func newHost(t testing.TB, root string, mounter mount.Interface, objects *objectMap) *Host {
	h := &Host{
		NodeAllocatable: v1.ResourceList{
			v1.ResourceCPU:              resource.MustParse("4"),
			v1.ResourceMemory:           resource.MustParse("8Gi"),
			v1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		},
		Now:     time.Now,
		t:       t,
		objects: objects,
	}
	h.Host = volume.Host{
		RootDir: root, NodeName: NodeName, Mounter: mounter,
		Secrets: secretRole{h}, ConfigMaps: configMapRole{h}, Tokens: tokenRole{h},
		TrustBundles: trustBundleRole{h}, Allocatable: allocatableRole{h}, Events: &h.events,
		HostFiles: hostFilesRole{h}, Releases: releaseRole{h},
	}
	return h
}

// Pod returns a pod of namespace "default" on the node, with a UID of its own,
// service account "default" and the given volumes.
func Pod(name string, volumes ...v1.Volume) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, UID: types.UID("uid-of-" + name)},
		Spec:       v1.PodSpec{NodeName: string(NodeName), ServiceAccountName: "default", Volumes: volumes},
	}
}
