// Package agent gives tests a node's volume manager on the real kernel, that ends and begins
// again on the same root directory, with claims and pods for it.
//
// Like every package below util, it carries no promise of compatibility.
package agent

import (
	"context"
	"os"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Agent is a node's agent. Its fields are set before Start.
type Agent struct {
	T    testing.TB
	Root string
	// Plugin returns the plugin for each process.
	Plugin func() volume.VolumePlugin
	// Containers and Resizes may be nil.
	Containers volumemanager.PodContainers
	Resizes    volume.NodeResizeReporter

	// Store has the objects, and Manager is that of the last Start.
	Store   *objects.Store
	Manager *volumemanager.Manager
	stop    func()
}

// Start begins the agent, anew after Stop. It does not declare a pod.
func (a *Agent) Start() {
	a.T.Helper()
	manager, err := volumemanager.New(volumemanager.Config{RootDir: a.Root, NodeName: "node1", Objects: a.Store, SetUpTimeout: 2 * time.Minute,
		Plugins: []volume.VolumePlugin{a.Plugin()}, Mounter: host.New(host.Config{}), Containers: a.Containers, Resizes: a.Resizes})
	testtool.Must(a.T, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- manager.Run(ctx) }()
	a.Manager, a.stop = manager, func() {
		cancel()
		if err := <-done; err != nil {
			a.T.Error(err)
		}
		done <- nil
	}
	manager.PodsComplete()
}

// Stop ends the agent. Mounts stay. It may be called again.
func (a *Agent) Stop() { a.stop() }

// Bind adds a PersistentVolume with a claim of its name in namespace ns, bound to each other.
func (a *Agent) Bind(pv *v1.PersistentVolume) *volume.Spec {
	a.T.Helper()
	pv.UID = types.UID("pv-" + pv.Name)
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: pv.Name, UID: types.UID("claim-" + pv.Name)}}
	claim.Spec = v1.PersistentVolumeClaimSpec{VolumeName: pv.Name, AccessModes: pv.Spec.AccessModes, VolumeMode: pv.Spec.VolumeMode, StorageClassName: new("")}
	claim.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: pv.Spec.Capacity, AccessModes: pv.Spec.AccessModes}
	pv.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "ns", Name: pv.Name, UID: claim.UID}
	pv.Status.Phase = v1.VolumeBound
	testtool.Must(a.T, a.Store.Load(a.T.Context(), 0, pv, claim))
	return volume.NewSpecFromPersistentVolume(pv, false)
}

// Pod returns a pod with claims, whose UID is uid- with its name.
func Pod(name string, claims ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	}
	return pod
}

// SetUp returns where the first volume of a pod is.
func (a *Agent) SetUp(pod *v1.Pod) string {
	a.T.Helper()
	ctx, cancel := context.WithTimeout(a.T.Context(), 5*time.Minute)
	defer cancel()
	begin := time.Now()
	volumes, err := a.Manager.SetUpPod(ctx, pod)
	testtool.Must(a.T, err)
	a.T.Logf("pod %s is set up after %v", pod.Name, time.Since(begin))
	return volumes.Volumes[0].Path
}

// TearDown tears the pod of a name down.
func (a *Agent) TearDown(name string) {
	a.T.Helper()
	ctx, cancel := context.WithTimeout(a.T.Context(), 5*time.Minute)
	defer cancel()
	begin := time.Now()
	testtool.Must(a.T, a.Manager.TearDownPod(ctx, types.UID("uid-"+name)))
	a.T.Logf("pod %s is torn down after %v", name, time.Since(begin))
}

// WantFile fails the test unless a file has this content.
func (a *Agent) WantFile(path, content string) {
	a.T.Helper()
	if data, err := os.ReadFile(path); string(data) != content || err != nil {
		a.T.Errorf("%s has %q, %v; want %q", path, data, err, content)
	}
}

// NoContainers is the role of a node whose containers are all gone.
type NoContainers struct{}

func (NoContainers) ContainersGone(context.Context, types.UID) (bool, error) { return true, nil }
func (NoContainers) WatchContainers(func(types.UID)) (stop func())           { return func() {} }
