package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/volumemanager"
)

func TestMain(m *testing.M) { noleak.Main(m) }

func TestProgram(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var out bytes.Buffer
	if err := run(t.Context(), &out, "../../testdata/redis-nfs.yaml", true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"volume redis-persistent-storage of pod default/redis-0 is mounted, after set-up\n",
		"sees volume redis-persistent-storage at /",
		"volume redis-persistent-storage of pod default/redis-0 is unmounted, after tear-down\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, &out)
		}
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// agent is one start of the agent, on a root and a runtime that outlive it.
type agent struct {
	*Provider
	stop func()
}

type machine struct {
	t       *testing.T
	root    string
	mounter *fakemount.Mounter
	store   *objects.Store
	runtime *runtime
	out     bytes.Buffer
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, root: filepath.Join(t.TempDir(), "root"), mounter: fakemount.New(), store: objects.NewStore()}
	m.runtime = newRuntime(&log{out: &m.out})
	t.Cleanup(func() { m.mounter.Close() })
	return m
}

func (m *machine) start() agent {
	m.t.Helper()
	volumes, err := newVolumes(m.root, "node1", m.store, m.runtime, m.runtime.log, m.mounter)
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- volumes.Run(ctx) }()
	if err := volumes.WaitForRecovery(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	return agent{newProvider(volumes, m.runtime), func() {
		cancel()
		if err := <-done; err != nil {
			m.t.Error(err)
		}
	}}
}

func memoryPod(name, mounts string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{
			Containers: []v1.Container{{Name: "c", Image: "i", VolumeMounts: []v1.VolumeMount{{Name: mounts, MountPath: "/data"}}}},
			Volumes:    []v1.Volume{{Name: "memory", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}}},
		},
	}
}

func (m *machine) mounts() int {
	m.t.Helper()
	points, err := m.mounter.List()
	if err != nil {
		m.t.Fatal(err)
	}
	return len(slices.DeleteFunc(points, func(p mount.MountPoint) bool { return !strings.HasPrefix(p.Path, m.root) }))
}

func TestPodsLife(t *testing.T) {
	m := newMachine(t)
	a := m.start()
	defer a.stop()
	pod := memoryPod("web", "memory")
	if err := a.CreatePod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	got, err := a.GetPod(t.Context(), "shop", "web")
	if err != nil || got.UID != pod.UID || m.mounts() != 1 {
		t.Errorf("%v, %v, %d mounts", got, err, m.mounts())
	}
	if err := a.DeletePod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if _, err := a.GetPod(t.Context(), "shop", "web"); !errors.Is(err, volume.ErrNotFound) || m.mounts() != 0 {
		t.Errorf("%v, %d mounts", err, m.mounts())
	}
}

// Containers that could not be started leave no volumes.
func TestContainersThatDoNotStart(t *testing.T) {
	m := newMachine(t)
	a := m.start()
	defer a.stop()
	pod := memoryPod("web", "memory")
	pod.Spec.Containers[0].Image = ""
	if err := a.CreatePod(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "no image") || m.mounts() != 0 {
		t.Errorf("%v, %d mounts", err, m.mounts())
	}
}

func TestUsersReadWhyAVolumeFails(t *testing.T) {
	m := newMachine(t)
	a := m.start()
	pod := memoryPod("web", "config")
	pod.Spec.Volumes[0] = v1.Volume{Name: "config", VolumeSource: v1.VolumeSource{
		ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "late"}}}}
	ctx, cancel := context.WithCancel(t.Context())
	stop := a.volumes.Subscribe(func(v volumemanager.VolumeStatus) {
		if v.State == volumemanager.StateFailed {
			cancel()
		}
	})
	defer stop()
	err := a.CreatePod(ctx, pod)
	if _, pending := errors.AsType[*volumemanager.PendingError](err); !pending || !strings.Contains(err.Error(), "ConfigMap shop/late not found") {
		t.Errorf("err = %v", err)
	}
	// The wish stays, so the config map's appearance is enough.
	if _, err := m.store.Create(t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "late"}}); err != nil {
		t.Fatal(err)
	}
	if err := a.CreatePod(t.Context(), pod); err != nil {
		t.Error(err)
	}
	a.stop()
	if !strings.Contains(m.out.String(), "event Warning FailedMount of pod shop/web") {
		t.Errorf("no event:\n%s", &m.out)
	}
}

// After a restart, the volumes of a pod that went meanwhile stay until the
// agent knows all pods and the runtime says that its containers have gone.
func TestVolumesOutliveContainersAcrossARestart(t *testing.T) {
	m := newMachine(t)
	a := m.start()
	pod := memoryPod("web", "memory")
	if err := a.CreatePod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	a.stop()
	a = m.start()
	defer a.stop()
	a.PodsKnown()
	// A stranger's whole life passes through the same queue first.
	other := memoryPod("other", "memory")
	if err := errors.Join(a.CreatePod(t.Context(), other), a.DeletePod(t.Context(), other)); err != nil {
		t.Fatal(err)
	}
	if m.mounts() != 1 {
		t.Errorf("%d mounts while containers run", m.mounts())
	}
	m.runtime.stop(pod.UID)
	if err := a.volumes.WaitForUnmounted(t.Context(), pod.UID); err != nil || m.mounts() != 0 {
		t.Errorf("%v, %d mounts", err, m.mounts())
	}
}
