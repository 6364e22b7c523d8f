package nfs_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/volumemanager"
)

// node runs the volume manager over a server's share: a claim and an inline
// volume in two pods, sub-paths, and a manager that is restarted in between.
func (m *matrix) node(t *testing.T) {
	for _, version := range []string{"3", "4.2"} {
		m.row(t, "volume manager, subPath, restart, version "+version, func(n *client) {
			if err := os.MkdirAll(m.server.Path("/data/site/css"), 0o777); err != nil {
				n.Fatal(err)
			}
			m.server.Put("/data/site/index.html", "index")
			node := n.newNode(n.persistent("/data", "vers="+version))
			manager, stop := node.start()
			web, other := node.pod("web"), node.pod("other")
			dir := node.setUp(manager, web)
			node.setUp(manager, other)
			node.useSubPaths(manager, web)
			before, _ := n.at(dir)
			n.version, _ = before.Option("vers")
			stop()

			manager, stop = node.start()
			node.setUp(manager, web)
			node.setUp(manager, other)
			if after, mounted := n.at(dir); !mounted || after.ID != before.ID {
				n.Errorf("the restart has mounted anew: %+v, before: %+v", after, before)
			}
			node.useSubPaths(manager, web)
			node.tearDown(manager, web)
			n.wantContent(filepath.Join(node.path(other), "hello"), "hello")
			node.tearDown(manager, other)
			stop()
			n.wantContent(m.server.Path("/data/site/index.html"), "index")
		})
	}
}

// kubeletNode is one root directory with a claim's volume in the store.
type kubeletNode struct {
	*client
	root  string
	store *objects.Store
}

func (n *client) newNode(spec *volume.Spec) *kubeletNode {
	n.Helper()
	k := &kubeletNode{n, filepath.Join(nfsserver.DetachBelow(n, n.TempDir()), "root"), objects.NewStore()}
	pv := spec.PersistentVolume.DeepCopy()
	claim := &v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{AccessModes: pv.Spec.AccessModes, VolumeName: pv.Name}}
	claim.Namespace, claim.Name, claim.UID = "ops-test", "nfs-211", "claim-uid"
	claim.Status.Phase = v1.ClaimBound
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}
	pv.Status.Phase = v1.VolumeBound
	if _, err := k.store.Create(n.Context(), pv); err != nil {
		n.Fatal(err)
	}
	if _, err := k.store.Create(n.Context(), claim); err != nil {
		n.Fatal(err)
	}
	return k
}

func (k *kubeletNode) pod(name string) *v1.Pod {
	p := pod(types.UID(name + "-uid"))
	p.Name = name
	p.Spec.NodeName = "node1"
	p.Spec.Volumes = []v1.Volume{
		{Name: "claimed", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "nfs-211"}}},
		{Name: "inline", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: k.server.Address6(), Path: "/data"}}},
	}
	p.Spec.Containers = []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{
		{Name: "claimed", MountPath: "/whole"},
		{Name: "claimed", MountPath: "/site", SubPath: "site", ReadOnly: true},
		{Name: "claimed", MountPath: "/index.html", SubPath: "site/index.html"},
		{Name: "inline", MountPath: "/made", SubPath: "made/by/" + name},
	}}}
	return p
}

func (k *kubeletNode) start() (manager *volumemanager.Manager, stop func()) {
	k.Helper()
	manager, err := volumemanager.New(volumemanager.Config{
		RootDir: k.root, NodeName: "node1", Objects: k.store, Plugins: []volume.VolumePlugin{nfs.New(nfs.Config{})}, Mounter: k.host,
	})
	if err != nil {
		k.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			k.Errorf("Run: %v", err)
		}
	})
	k.Cleanup(stop)
	return manager, stop
}

func (k *kubeletNode) bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(k.Context(), time.Minute)
}

// setUp returns the directory of the claim's volume.
func (k *kubeletNode) setUp(manager *volumemanager.Manager, p *v1.Pod) string {
	k.Helper()
	ctx, cancel := k.bounded()
	defer cancel()
	volumes, err := manager.SetUpPod(ctx, p)
	if err != nil {
		k.Fatal(err)
	}
	dir, mounted := volumes.Path("claimed")
	if !mounted || dir != k.path(p) {
		k.Fatalf("%s, %v; want %s", dir, mounted, k.path(p))
	}
	k.wantContent(filepath.Join(dir, "hello"), "hello")
	return dir
}

func (k *kubeletNode) path(p *v1.Pod) string {
	return filepath.Join(k.root, "pods", string(p.UID), "volumes/kubernetes.io~nfs/nfs211")
}

// useSubPaths looks at what the pod's container gets, where it is on the host.
func (k *kubeletNode) useSubPaths(manager *volumemanager.Manager, p *v1.Pod) {
	k.Helper()
	ctx, cancel := k.bounded()
	defer cancel()
	mounts, _, err := manager.ContainerMounts(ctx, p.UID, "c", containermounts.Options{})
	if err != nil || len(mounts) != 4 {
		k.Fatalf("%+v, %v", mounts, err)
	}
	source := map[string]containermounts.Mount{}
	for _, m := range mounts {
		source[m.Destination] = m
	}
	k.wantContent(filepath.Join(source["/whole"].Source, "site/index.html"), "index")
	k.wantContent(filepath.Join(source["/site"].Source, "index.html"), "index")
	k.wantContent(source["/index.html"].Source, "index")
	if !source["/site"].ReadOnly || !source["/index.html"].File {
		k.Errorf("%+v", mounts)
	}
	if err := os.WriteFile(filepath.Join(source["/made"].Source, "file"), []byte(p.Name), 0o644); err != nil {
		k.Error(err)
	}
	k.wantContent(k.server.Path("/data/made/by/"+p.Name+"/file"), p.Name)
}

// tearDown wants nothing of the pod's to be left, mounted or not.
func (k *kubeletNode) tearDown(manager *volumemanager.Manager, p *v1.Pod) {
	k.Helper()
	ctx, cancel := k.bounded()
	defer cancel()
	if err := manager.TearDownPod(ctx, p.UID); err != nil {
		k.Error(err)
	}
	below := filepath.Join(k.root, "pods", string(p.UID))
	for _, e := range k.mountedBelow(below) {
		k.Errorf("%s is left at %s", e.Source, e.Target)
	}
	if err := unix.Access(k.path(p), unix.F_OK); err != unix.ENOENT {
		k.Errorf("%s is left: %v", k.path(p), err)
	}
}

func (k *kubeletNode) mountedBelow(dir string) []mount.Entry {
	k.Helper()
	mounts := table.Of(k.host)
	entries, err := mounts.All()
	if err != nil {
		k.Fatal(err)
	}
	return slices.DeleteFunc(entries, func(e mount.Entry) bool { return e.Target != dir && !strings.HasPrefix(e.Target, dir+"/") })
}
