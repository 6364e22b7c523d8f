package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/journal"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumemanager"
)

// world is a root directory with a fake mount table and a store that outlive
// the managers that run on them.
type world struct {
	t      testing.TB
	root   string
	fake   *fakemount.Mounter
	store  *objects.Store
	events *events

	plugins   func() []volume.VolumePlugin // new ones for each manager; nil: plugins.All
	mounter   mount.Interface              // nil: the fake
	hostFiles volume.HostFiles
	holder    volumemanager.DeviceHolder
	seLinux   selinux.Labels // nil: the node has none

	seLinuxMount bool

	resizes volume.NodeResizeReporter

	setUpTimeout time.Duration
	containers   volumemanager.PodContainers
	kubelets     bool // the machine's are seen
}

// newWorldIn leaves to the caller to clean up.
func newWorldIn(t testing.TB, dir string) *world {
	return &world{t: t, root: filepath.Join(dir, "root"), fake: fakemount.New(), store: objects.NewStore(), events: &events{}}
}

func newWorld(t testing.TB) *world {
	w := newWorldIn(t, t.TempDir())
	t.Cleanup(func() {
		if err := w.fake.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// besides returns the usual plugins, new each time, and others.
func besides(others ...volume.VolumePlugin) func() []volume.VolumePlugin {
	return func() []volume.VolumePlugin { return append(plugins.All(), others...) }
}

func (w *world) config() volumemanager.Config {
	c := volumemanager.Config{
		RootDir: w.root, NodeName: "node1", Objects: w.store, Plugins: plugins.All(), Mounter: w.fake, Events: w.events, HostFiles: w.hostFiles,
		SetUpTimeout: w.setUpTimeout, Containers: w.containers, DeviceHolder: w.holder,
		SELinux: selinux.Policy{Labels: w.seLinux, Mount: w.seLinuxMount},
	}
	if w.resizes != nil {
		c.Resizes = w.resizes
	}
	if w.plugins != nil {
		c.Plugins = w.plugins()
	}
	if w.mounter != nil {
		c.Mounter = w.mounter
	}
	if !w.kubelets {
		c = c.BesideNoKubelet()
	}
	return c
}

// start runs a manager until the test or stop ends it.
func (w *world) start() (manager *volumemanager.Manager, stop func()) {
	w.t.Helper()
	manager, err := volumemanager.New(w.config())
	if err != nil {
		w.t.Fatal(err)
	}
	return manager, w.run(manager)
}

// run runs a manager until the test or stop ends it, and waits until it has
// recovered.
func (w *world) run(manager *volumemanager.Manager) (stop func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	w.t.Cleanup(stop)
	if err := manager.WaitForRecovery(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	return stop
}

func (w *world) add(objects ...metav1.Object) {
	w.t.Helper()
	for _, o := range objects {
		if _, err := w.store.Create(context.Background(), o); err != nil {
			w.t.Fatal(err)
		}
	}
}

// assertClean fails if anything but the manager's own directory is left.
func (w *world) assertClean() {
	w.t.Helper()
	if records := w.records(); len(records) > 0 {
		w.t.Errorf("records are left: %v", records)
	}
	points, err := w.config().Mounter.List()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range points {
		if strings.HasPrefix(p.Path, w.root) {
			w.t.Errorf("%s is still mounted", p.Path)
		}
	}
	pods, err := os.ReadDir(filepath.Join(w.root, "pods"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Fatal(err)
	}
	for _, p := range pods {
		w.t.Errorf("pods/%s is left", p.Name())
	}
}

// records returns the volumes that have a record.
func (w *world) records() (keys []string) {
	w.t.Helper()
	held, damaged, err := journal.Read(w.recordsPath())
	if err != nil || len(damaged) > 0 {
		w.t.Fatal(err, damaged)
	}
	for _, entry := range held {
		if !strings.HasPrefix(entry.Key, "buried/") { // a running manager's, of what is gone
			keys = append(keys, entry.Key)
		}
	}
	return keys
}

// neverRecorded makes the root one of another agent, which has no records.
func (w *world) neverRecorded() {
	w.t.Helper()
	for _, path := range []string{w.recordsPath(), w.recordsPath() + ".made", filepath.Join(w.root, "podvol", ".records.made")} {
		if err := os.Remove(path); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) recordsPath() string { return filepath.Join(w.root, "podvol", "records") }

// untouched fails if anything was made or mounted below the root.
func (w *world) untouched() {
	w.t.Helper()
	w.assertClean()
	if calls := w.fake.Calls(); len(calls) > 0 {
		w.t.Errorf("the mounter was called: %v", calls)
	}
}

type events struct {
	mu   sync.Mutex
	list []string
}

func (e *events) Event(pod *v1.Pod, eventType, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, fmt.Sprintf("%s %s %s %s", pod.Name, eventType, reason, message))
}

func (e *events) all() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.list...)
}

// newPod returns a pod of one container, "c", that mounts each of the volumes.
func newPod(name string, volumes ...v1.Volume) *v1.Pod {
	return withVolumes(&v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1.PodSpec{NodeName: "node1", Containers: []v1.Container{{Name: "c", Image: "i"}}},
	}, volumes...)
}

// withVolumes gives a pod more volumes, which its first container mounts.
func withVolumes(pod *v1.Pod, volumes ...v1.Volume) *v1.Pod {
	c := &pod.Spec.Containers[0]
	for _, v := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return pod
}

func nfsVolume(name, server string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: server, Path: "/nfs"}}}
}

func claimVolume(name, claim string, readOnly bool) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: readOnly}}}
}

func emptyDirVolume(name string, medium v1.StorageMedium) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: medium}}}
}

// boundPair is a claim and the NFS PersistentVolume it is bound to.
func boundPair(claim, pv string) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("10Gi")}
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: claim, UID: types.UID("claim-" + claim)},
		Spec: v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, VolumeName: pv,
			Resources: v1.VolumeResourceRequirements{Requests: size}},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound},
	}
	v := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pv},
		Spec: v1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany},
			ClaimRef:               &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ops-test", Name: claim, UID: c.UID},
			PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "10.20.172.211", Path: "/nfs"}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}
	return c, v
}

func noPreconditions() objects.Preconditions { return objects.Preconditions{} }
