package volumemanager_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/volumemanager"
)

// disk is a plugin whose volumes are disks of the node, mounted once and bound
// into each pod. It fails the test when a pod is bound to a disk that is not
// mounted, or a disk is unmounted under a pod.
type disk struct {
	// canAttach answers for an attachable disk; nil: it is one.
	canAttach func(context.Context) (bool, error)
	t         testing.TB
	host      volume.VolumeHost
	calls     fault.Injector[diskCall]

	bound      sync.Map // of the pods' volumes' paths to the places they are bound to
	noDevices  bool     // what CanDeviceMount denies
	speechless atomic.Pointer[error]
}

// diskCall is a call of the plugin: whose it is says which disk, or which pod.
type diskCall struct{ Op, Whose, Device, Args string }

func (c diskCall) String() string { return strings.TrimSpace(c.Op + " " + c.Whose) }

const diskPlugin = "example.com/disk"

func (d *disk) Init(host volume.VolumeHost) error { d.host = host; return nil }
func (d *disk) GetPluginName() string             { return diskPlugin }
func (d *disk) CanSupport(s *volume.Spec) bool    { return pdName(s) != "" }
func (d *disk) GetVolumeName(s *volume.Spec) (string, error) {
	return pdName(s), nil
}

func pdName(s *volume.Spec) string {
	switch {
	case s.Volume != nil && s.Volume.GCEPersistentDisk != nil:
		return s.Volume.GCEPersistentDisk.PDName
	case s.PersistentVolume != nil && s.PersistentVolume.Spec.GCEPersistentDisk != nil:
		return s.PersistentVolume.Spec.GCEPersistentDisk.PDName
	}
	return ""
}

func (d *disk) NewMounter(s *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	source, _ := d.GetDeviceMountPath(s)
	return &diskVolume{disk: d, pod: pod.UID, dir: d.host.GetPodVolumeDir(pod.UID, diskPlugin, s.Name()), source: source}, nil
}

func (d *disk) NewUnmounter(name string, pod types.UID) (volume.Unmounter, error) {
	return &diskVolume{disk: d, pod: pod, dir: d.host.GetPodVolumeDir(pod, diskPlugin, name)}, nil
}

func (d *disk) ConstructVolumeSpec(_ context.Context, name, _ string) (volume.ReconstructedVolume, error) {
	if of, ok := strings.CutPrefix(name, "pv-"); ok {
		_, pv := boundPair("", name)
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{GCEPersistentDisk: diskSource(of)}
		return volume.ReconstructedVolume{Spec: volume.NewSpecFromPersistentVolume(pv, false), Complete: true}, nil
	}
	source := v1.VolumeSource{GCEPersistentDisk: diskSource(strings.TrimPrefix(name, "v-"))}
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{Name: name, VolumeSource: source}), Complete: true}, nil
}
func (d *disk) GetAccessModes() []v1.PersistentVolumeAccessMode     { return nil }
func (d *disk) NewDeviceMounter() (volume.DeviceMounter, error)     { return d, nil }
func (d *disk) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return d, nil }
func (d *disk) place(name string) string {
	return filepath.Join(d.host.GetPluginDir(diskPlugin), "mounts", name)
}
func (d *disk) GetDeviceMountRefs(path string) (refs []string, _ error) { return d.binds(path), nil }

// GetDeviceMountPath gives each PersistentVolume a place of its own.
func (d *disk) GetDeviceMountPath(s *volume.Spec) (string, error) {
	if s.PersistentVolume != nil {
		return d.place(s.Name()), nil
	}
	return d.place(pdName(s)), nil
}

func (d *disk) CanDeviceMount(*volume.Spec) (bool, error) {
	if err := d.speechless.Load(); err != nil {
		return false, *err
	}
	return !d.noDevices, nil
}

// binds are the mounts of what is mounted at path, other than that.
func (d *disk) binds(path string) (targets []string) {
	mounts := table.Of(d.host.GetMounter())
	at, mounted, _ := mounts.At(path)
	if !mounted {
		return nil
	}
	all, _ := mounts.ByDevice(at.Device)
	for _, e := range all {
		if source, ok := d.bound.Load(e.Target); ok && source == path {
			targets = append(targets, e.Target)
		}
	}
	return targets
}

func (d *disk) MountDevice(ctx context.Context, s *volume.Spec, devicePath, path string, args volume.DeviceMounterArgs) error {
	call := diskCall{Op: "MountDevice", Whose: pdName(s), Device: devicePath}
	if args.FsGroup != nil {
		call.Args = fmt.Sprint("fsGroup ", *args.FsGroup)
	}
	return d.calls.Do(ctx, call, func() error {
		if devicePath == "" {
			devicePath = "/dev/disk/by-id/" + pdName(s)
		}
		_, err := podmount.SetUp(ctx, d.host.GetMounter(), mount.Request{Source: devicePath, Target: path, FSType: "ext4"}, anyMount)
		return err
	})
}

func (d *disk) UnmountDevice(ctx context.Context, path string) error {
	return d.calls.Do(ctx, diskCall{Op: "UnmountDevice", Whose: filepath.Base(path)}, func() error {
		if binds := d.binds(path); len(binds) > 0 {
			d.t.Errorf("%s is unmounted although %v use it", path, binds)
		}
		return podmount.TearDown(ctx, d.host.GetMounter(), path, mount.UnmountOptions{})
	})
}

func anyMount(mount.Entry) bool { return true }

// diskVolume is a disk's volume in a pod.
type diskVolume struct {
	volume.NoMetrics
	disk        *disk
	pod         types.UID
	dir, source string
}

func (v *diskVolume) GetPath() string                  { return v.dir }
func (v *diskVolume) GetAttributes() volume.Attributes { return volume.Attributes{Managed: true} }
func (v *diskVolume) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return v.SetUpAt(ctx, v.dir, args)
}

func (v *diskVolume) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	d := v.disk
	return d.calls.Do(ctx, diskCall{Op: "SetUp", Whose: string(v.pod)}, func() error {
		request := mount.Request{Source: v.source, Target: dir, Options: []string{"bind"}}
		if d.noDevices {
			request = mount.Request{Source: "/dev/" + filepath.Base(v.source), Target: dir, FSType: "ext4"}
		} else if _, mounted, _ := table.Of(d.host.GetMounter()).At(v.source); !mounted {
			d.t.Errorf("pod %s is bound to %s, where nothing is mounted", v.pod, v.source)
		}
		d.bound.Store(dir, v.source)
		_, err := podmount.SetUp(ctx, d.host.GetMounter(), request, anyMount)
		return err
	})
}

func (v *diskVolume) TearDown(ctx context.Context) error { return v.TearDownAt(ctx, v.dir) }
func (v *diskVolume) TearDownAt(ctx context.Context, dir string) error {
	return v.disk.calls.Do(ctx, diskCall{Op: "TearDown", Whose: string(v.pod)}, func() error {
		return podmount.TearDown(ctx, v.disk.host.GetMounter(), dir, mount.UnmountOptions{})
	})
}

// log is the plugin's calls, and empties it.
func (d *disk) log() (lines []string) {
	for _, c := range d.calls.Calls() {
		lines = append(lines, c.String())
	}
	d.calls.ResetCalls()
	return lines
}

// count is how many calls there were of an operation.
func (d *disk) count(call string) (n int) {
	for _, c := range d.calls.Calls() {
		if c.String() == call {
			n++
		}
	}
	return n
}

func isDiskCall(call string) func(diskCall) bool {
	return func(c diskCall) bool { return c.String() == call || c.Op == call }
}

// attachableDisk is a disk that is attached to its node first.
type attachableDisk struct{ *disk }

func (d attachableDisk) NewAttacher() (volume.Attacher, error) { return d, nil }
func (d attachableDisk) NewDetacher() (volume.Detacher, error) { return d, nil }
func (d attachableDisk) CanAttach(ctx context.Context, s *volume.Spec) (bool, error) {
	if d.canAttach != nil {
		return d.canAttach(ctx)
	}
	return true, nil
}
func (d attachableDisk) Detach(context.Context, string, types.NodeName) error {
	return fmt.Errorf("nodes do not detach")
}
func (d attachableDisk) Attach(context.Context, *volume.Spec, types.NodeName) (string, error) {
	return "", fmt.Errorf("nodes do not attach")
}
func (d attachableDisk) VolumesAreAttached(context.Context, []*volume.Spec, types.NodeName) (map[*volume.Spec]bool, error) {
	return nil, fmt.Errorf("nodes do not ask")
}
func (d attachableDisk) WaitForAttach(ctx context.Context, s *volume.Spec, devicePath string, pod *v1.Pod, timeout time.Duration) (string, error) {
	err := d.calls.Do(ctx, diskCall{Op: "WaitForAttach", Whose: pdName(s), Device: devicePath, Args: string(pod.UID) + " " + timeout.String()}, func() error { return nil })
	return devicePath + "-part1", err
}

var (
	_ volume.DeviceMountableVolumePlugin = (*disk)(nil)
	_ volume.AttachableVolumePlugin      = attachableDisk{}
)

// withDisks gives the world's managers the plugin besides the usual ones.
func (w *world) withDisks() *disk {
	d := &disk{t: w.t}
	w.plugins = besides(d)
	return d
}

func (w *world) withAttachableDisks() *disk {
	d := &disk{t: w.t}
	w.plugins = besides(attachableDisk{d})
	return d
}

// assertNoDevices is assertClean of the devices too.
func (w *world) assertNoDevices() {
	w.t.Helper()
	w.assertClean()
	left, _ := filepath.Glob(filepath.Join(w.root, "plugins", diskPlugin, "mounts", "*"))
	if len(left) > 0 {
		w.t.Errorf("left behind: %v", left)
	}
}

// mountedDevices are the disks that are mounted.
func (w *world) mountedDevices() (names []string) {
	w.t.Helper()
	points, err := w.fake.List()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range points {
		if strings.HasPrefix(p.Path, filepath.Join(w.root, "plugins")+string(os.PathSeparator)) {
			names = append(names, filepath.Base(p.Path))
		}
	}
	slices.Sort(names)
	return names
}

func diskSource(name string) *v1.GCEPersistentDiskVolumeSource {
	return &v1.GCEPersistentDiskVolumeSource{PDName: name}
}

func diskPod(name string, disks ...string) *v1.Pod {
	pod := newPod(name)
	for _, d := range disks {
		withVolumes(pod, v1.Volume{Name: "v-" + d, VolumeSource: v1.VolumeSource{GCEPersistentDisk: diskSource(d)}})
	}
	return pod
}

func mustSetUp(t testing.TB, m *volumemanager.Manager, pods ...*v1.Pod) {
	t.Helper()
	for _, pod := range pods {
		if _, err := m.SetUpPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
}

func mustTearDown(t testing.TB, m *volumemanager.Manager, pods ...*v1.Pod) {
	t.Helper()
	for _, pod := range pods {
		if err := m.TearDownPod(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
	}
}
