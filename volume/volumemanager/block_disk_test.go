package volumemanager_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/layout"
)

// blockDisk is a disk that pods can have as a device. Its nodes are files of a
// directory that stands for /dev. It fails the test when a pod gets a device
// that is not set up, or one is torn down while a pod has it.
type blockDisk struct {
	attachableDisk
	dev      string
	attaches bool
	// published is what MapPodDevice returns; nil: the node.
	published func(disk string) string

	mu    sync.Mutex
	ready map[string]bool
	had   map[string]map[types.UID]bool
}

var _ volume.BlockVolumePlugin = (*blockDisk)(nil)

func (d *blockDisk) CanAttach(context.Context, *volume.Spec) (bool, error) { return d.attaches, nil }

func (d *blockDisk) node(disk string) string { return filepath.Join(d.dev, disk) }

func (d *blockDisk) NewBlockVolumeMapper(spec *volume.Spec, pod *v1.Pod) (volume.BlockVolumeMapper, error) {
	return &blockDiskVolume{disk: d, name: spec.Name(), pod: pod.UID}, nil
}

func (d *blockDisk) NewBlockVolumeUnmapper(name string, pod types.UID) (volume.BlockVolumeUnmapper, error) {
	return &blockDiskVolume{disk: d, name: name, pod: pod}, nil
}

func (d *blockDisk) ConstructBlockVolumeSpec(_ context.Context, _ types.UID, name, _ string) (*volume.Spec, error) {
	_, pv := blockPair("", name)
	return volume.NewSpecFromPersistentVolume(pv, false), nil
}

type blockDiskVolume struct {
	volume.NoMetrics
	disk *blockDisk
	name string
	pod  types.UID
}

func (v *blockDiskVolume) GetGlobalMapPath(*volume.Spec) (string, error) {
	return filepath.Join(v.disk.host.GetPluginDir(diskPlugin), "volumeDevices", v.name), nil
}

func (v *blockDiskVolume) GetPodDeviceMapPath() (dir, name string) {
	return layout.GetPodVolumeDeviceDir(v.disk.host, v.pod, diskPlugin), v.name
}

func (v *blockDiskVolume) GetStagingPath() string { return "" }

// do counts the state under the plugin's lock around a call.
func (v *blockDiskVolume) do(ctx context.Context, op, whose string, f func()) error {
	return v.disk.calls.Do(ctx, diskCall{Op: op, Whose: whose}, func() error {
		v.disk.mu.Lock()
		defer v.disk.mu.Unlock()
		f()
		return nil
	})
}

func (v *blockDiskVolume) SetUpDevice(ctx context.Context) (string, error) {
	return "", v.do(ctx, "SetUpDevice", v.name, func() { v.disk.ready[v.name] = true })
}

func (v *blockDiskVolume) MapPodDevice(ctx context.Context) (string, error) {
	err := v.do(ctx, "MapPodDevice", string(v.pod), func() {
		if !v.disk.ready[v.name] {
			v.disk.t.Errorf("pod %s gets %s, which is not set up", v.pod, v.name)
		}
		if v.disk.had[v.name] == nil {
			v.disk.had[v.name] = map[types.UID]bool{}
		}
		v.disk.had[v.name][v.pod] = true
	})
	if v.disk.published != nil {
		return v.disk.published(v.name), err
	}
	return v.disk.node(strings.TrimPrefix(v.name, "pv-")), err
}

func (v *blockDiskVolume) UnmapPodDevice(ctx context.Context) error {
	return v.do(ctx, "UnmapPodDevice", string(v.pod), func() { delete(v.disk.had[v.name], v.pod) })
}

func (v *blockDiskVolume) TearDownDevice(ctx context.Context, _, _ string) error {
	return v.do(ctx, "TearDownDevice", v.name, func() {
		if len(v.disk.had[v.name]) > 0 {
			v.disk.t.Errorf("%s is torn down although %v have it", v.name, v.disk.had[v.name])
		}
		v.disk.ready[v.name] = false
	})
}

// holds are a node's loop devices, with faults.
type holds struct {
	disk *blockDisk
	mu   sync.Mutex
	held map[string]bool
}

func (h *holds) Hold(path string) error {
	return h.disk.calls.Do(context.Background(), diskCall{Op: "Hold", Whose: filepath.Base(path)}, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.held[path] = true
		return nil
	})
}

func (h *holds) Release(path string) error {
	return h.disk.calls.Do(context.Background(), diskCall{Op: "Release", Whose: filepath.Base(path)}, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.held, path)
		return nil
	})
}

// withBlockDisks gives the world's managers the plugin, with the disks "a" and
// "b", bound claims "a" and "b" of them, and holds of its own.
func (w *world) withBlockDisks() (*blockDisk, *holds) {
	d := &blockDisk{attachableDisk: attachableDisk{&disk{t: w.t}}, dev: filepath.Join(filepath.Dir(w.root), "dev"),
		ready: map[string]bool{}, had: map[string]map[types.UID]bool{}}
	h := &holds{disk: d, held: map[string]bool{}}
	w.plugins, w.holder = besides(d), h
	w.mounter = faultyMounts{w.fake, d}
	if err := os.Mkdir(d.dev, 0o755); err != nil {
		w.t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		claim, pv := blockPair(name, "pv-"+name)
		w.add(claim, pv)
		if err := os.WriteFile(d.node(name), nil, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	return d, h
}

// faultyMounts counts binds of devices among the plugin's calls.
type faultyMounts struct {
	*fakemount.Mounter
	disk *blockDisk
}

func (f faultyMounts) MountContext(ctx context.Context, r mount.Request) error {
	return f.disk.calls.Do(ctx, diskCall{Op: "bind", Whose: filepath.Base(r.Target)}, func() error {
		return f.Mounter.MountContext(ctx, r)
	})
}

func (f faultyMounts) UnmountContext(ctx context.Context, target string, o mount.UnmountOptions) (rung mount.Rung, err error) {
	err = f.disk.calls.Do(ctx, diskCall{Op: "unbind", Whose: filepath.Base(target)}, func() (err error) {
		rung, err = f.Mounter.UnmountContext(ctx, target, o)
		return err
	})
	return rung, err
}

// blockPair is a claim bound to a PersistentVolume of volumeMode Block.
func blockPair(claim, pv string) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	c, v := boundPair(claim, pv)
	c.Spec.VolumeMode, v.Spec.VolumeMode = new(v1.PersistentVolumeBlock), new(v1.PersistentVolumeBlock)
	v.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{GCEPersistentDisk: diskSource(strings.TrimPrefix(pv, "pv-"))}
	return c, v
}

// blockPod has the claims' disks as devices, as volumes "v-<claim>".
func blockPod(name string, claims ...string) *v1.Pod {
	pod := newPod(name)
	for _, c := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, claimVolume("v-"+c, c, false))
		devices := &pod.Spec.Containers[0].VolumeDevices
		*devices = append(*devices, v1.VolumeDevice{Name: "v-" + c, DevicePath: "/dev/" + c})
	}
	return pod
}

// assertNoBlocks is assertClean of everything that block volumes leave.
func (w *world) assertNoBlocks(d *blockDisk, h *holds) {
	w.t.Helper()
	w.assertClean()
	left, _ := filepath.Glob(filepath.Join(w.root, "plugins", diskPlugin, "volumeDevices", "*"))
	if len(left) > 0 || len(h.held) > 0 {
		w.t.Errorf("left behind: %v, held: %v", left, h.held)
	}
	for name, ready := range d.ready {
		if ready {
			w.t.Errorf("%s is still set up", name)
		}
	}
}

func (w *world) assertMapped(d *blockDisk, h *holds, pod, claim string) {
	w.t.Helper()
	link := filepath.Join(w.root, "pods", "uid-"+pod, "volumeDevices", "example.com~disk", "pv-"+claim)
	if to, err := os.Readlink(link); err != nil || to != d.node(claim) {
		w.t.Errorf("the pod's link leads to %q, %v", to, err)
	}
	bind := filepath.Join(w.root, "plugins", diskPlugin, "volumeDevices", "pv-"+claim, "uid-"+pod)
	if !h.held[bind] {
		w.t.Errorf("%s is not held", bind)
	}
	if n := strings.Count(strings.Join(w.binds(), "\n")+"\n", bind+"\n"); n != 1 {
		w.t.Errorf("%s is bound %d times", bind, n)
	}
}

// binds are what is mounted below plugins/.
func (w *world) binds() (targets []string) {
	w.t.Helper()
	points, err := w.fake.List()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range points {
		if strings.HasPrefix(p.Path, filepath.Join(w.root, "plugins")+"/") {
			targets = append(targets, p.Path)
		}
	}
	slices.Sort(targets)
	return targets
}

var errDied = errors.New("the process died")

// dies makes the step fail, and everything after it: the dead do nothing more.
func (d *blockDisk) dies(step string, after bool) (remove func()) {
	dead := false
	return d.calls.Inject(
		fault.Fault[diskCall]{Match: func(diskCall) bool { return dead }, Err: errDied},
		fault.Fault[diskCall]{Match: isDiskCall(step), After: after, Err: errDied, Hook: func() { dead = true }},
	)
}
