package fakehost

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
)

// NodeName is the name of the node that [New] makes.
const NodeName types.NodeName = "node1"

// Host is a fake node. Its role fields (Secrets, ConfigMaps, Tokens,
// TrustBundles, PodCertificates, Endpoints, Allocatable, Events, HostFiles) are filled with what the other methods
// feed; set one to nil to take that role away. Releases says of every
// PersistentVolume that its data may be destroyed. Pods is nil. Its methods are safe for
// concurrent use; its fields must be set before the host is used.
type Host struct {
	volume.Host
	// Fake is the mounter, the same as GetMounter returns; nil on a host that
	// mounts for real.
	Fake *fakemount.Mounter
	// NodeAllocatable is what the role Allocatable answers.
	NodeAllocatable v1.ResourceList
	// Now is the clock that tokens and certificates expire by; time.Now at first.
	Now func() time.Time

	t       testing.TB
	objects *objectMap
	events  eventLog
	faults  fault.Injector[RoleCall]
	tokens  serial
	signer  signer
}

var _ volume.VolumeHost = (*Host)(nil)

// New returns a node whose root directory, with an empty directory "pods",
// is below t.TempDir. At the end of the test its mounter is closed, and the
// test fails if an object that a role had returned was changed.
func New(t testing.TB) *Host {
	t.Helper()
	fake := fakemount.New()
	// What was kept beside the mounts a plugin would take for its own.
	fake.KeepIn(t.TempDir())
	h := newHost(t, newRoot(t), fake, &objectMap{})
	h.Fake = fake
	t.Cleanup(func() {
		h.objects.assertUnchanged(t)
		if err := h.Fake.Close(); err != nil {
			t.Errorf("closing the fake mounter: %v", err)
		}
	})
	return h
}

// NewOnKernel is [New] with a mounter that mounts for real, in this mount
// namespace. It is given what it lacks by [host.Wrap]. At the end of the test, all mounts left below the root are detached, so
// that the data they show is not deleted with the directory.
func NewOnKernel(t testing.TB, mounter mount.Interface) *Host {
	t.Helper()
	h := newHost(t, newRoot(t), host.Wrap(mounter, nil), &objectMap{})
	t.Cleanup(func() {
		h.objects.assertUnchanged(t)
		for _, e := range slices.Backward(h.Mounts(t)) {
			if err := unix.Unmount(e.Target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				t.Errorf("unmount %s: %v", e.Target, err)
			}
		}
	})
	return h
}

// Restarted returns the host as a new process on the node finds it: root directory,
// mounts, objects, NodeAllocatable and Now stay. Roles that were replaced or taken
// away are there again; events, calls and faults of roles are forgotten.
func (h *Host) Restarted() *Host {
	again := newHost(h.t, h.RootDir, h.GetMounter(), h.objects)
	again.Fake, again.NodeAllocatable, again.Now = h.Fake, h.NodeAllocatable, h.Now
	return again
}

// T is the test that the host was made for.
func (h *Host) T() testing.TB { return h.t }

// newRoot makes a root directory, with an empty directory "pods".
func newRoot(t testing.TB) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
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
		TrustBundles: trustBundleRole{h}, PodCertificates: certificateRole{h}, Allocatable: allocatableRole{h}, Events: &h.events,
		HostFiles: hostFilesRole{h}, Releases: releaseRole{h}, Endpoints: endpointsRole{h},
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
