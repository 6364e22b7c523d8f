package clusterhost_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

const diskPlugin = "example.com/disk"

func unique(disk string) v1.UniqueVolumeName { return v1.UniqueVolumeName(diskPlugin + "/" + disk) }

// disks is a plugin whose volumes are attached to the node, mounted there once, and
// bound into each pod.
type disks struct {
	host     volume.VolumeHost
	mounting func(disk string) // called before a disk is mounted

	mu   *sync.Mutex
	used map[string]bool // from before a disk is mounted until it is unmounted
}

func newDisks() *disks {
	return &disks{mounting: func(string) {}, mu: new(sync.Mutex), used: make(map[string]bool)}
}

var _ volume.AttachableVolumePlugin = (*disks)(nil)

func (d *disks) use(disk string, used bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.used[disk] = used
}

func (d *disks) isUsed(disk string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.used[disk]
}

func (d *disks) Init(host volume.VolumeHost) error { d.host = host; return nil }
func (d *disks) GetPluginName() string             { return diskPlugin }
func (d *disks) CanSupport(s *volume.Spec) bool    { return diskOf(s) != "" }
func (d *disks) GetVolumeName(s *volume.Spec) (string, error) {
	return diskOf(s), nil
}

func diskOf(s *volume.Spec) string {
	if s.Volume == nil || s.Volume.GCEPersistentDisk == nil {
		return ""
	}
	return s.Volume.GCEPersistentDisk.PDName
}

func (d *disks) NewMounter(s *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return &diskVolume{d, d.host.GetPodVolumeDir(pod.UID, diskPlugin, s.Name()), d.place(diskOf(s)), volume.NoMetrics{}}, nil
}

func (d *disks) NewUnmounter(name string, pod types.UID) (volume.Unmounter, error) {
	return &diskVolume{d, d.host.GetPodVolumeDir(pod, diskPlugin, name), "", volume.NoMetrics{}}, nil
}

func (d *disks) ConstructVolumeSpec(_ context.Context, name, _ string) (volume.ReconstructedVolume, error) {
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(diskSource(strings.TrimPrefix(name, "v-"))), Complete: true}, nil
}

func diskSource(disk string) *v1.Volume {
	return &v1.Volume{Name: "v-" + disk, VolumeSource: v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: disk}}}
}

func (d *disks) place(disk string) string {
	return filepath.Join(d.host.GetPluginDir(diskPlugin), "mounts", disk)
}
func (d *disks) NewDeviceMounter() (volume.DeviceMounter, error)       { return d, nil }
func (d *disks) NewDeviceUnmounter() (volume.DeviceUnmounter, error)   { return d, nil }
func (d *disks) NewAttacher() (volume.Attacher, error)                 { return d, nil }
func (d *disks) NewDetacher() (volume.Detacher, error)                 { return d, nil }
func (d *disks) CanAttach(context.Context, *volume.Spec) (bool, error) { return true, nil }
func (d *disks) CanDeviceMount(*volume.Spec) (bool, error)             { return true, nil }
func (d *disks) GetDeviceMountRefs(string) ([]string, error)           { return nil, nil }
func (d *disks) GetDeviceMountPath(s *volume.Spec) (string, error)     { return d.place(diskOf(s)), nil }

var errNotHere = errors.New("a node does not attach")

func (d *disks) Detach(context.Context, string, types.NodeName) error { return errNotHere }
func (d *disks) Attach(context.Context, *volume.Spec, types.NodeName) (string, error) {
	return "", errNotHere
}
func (d *disks) VolumesAreAttached(context.Context, []*volume.Spec, types.NodeName) (map[*volume.Spec]bool, error) {
	return nil, errNotHere
}
func (d *disks) WaitForAttach(_ context.Context, _ *volume.Spec, devicePath string, _ *v1.Pod, _ time.Duration) (string, error) {
	return devicePath, nil
}

func anyMount(mount.Entry) bool { return true }

func (d *disks) MountDevice(ctx context.Context, s *volume.Spec, devicePath, path string, _ volume.DeviceMounterArgs) error {
	d.use(diskOf(s), true)
	d.mounting(diskOf(s))
	_, err := podmount.SetUp(ctx, d.host.GetMounter(), mount.Request{Source: devicePath, Target: path, FSType: "ext4"}, anyMount)
	if err != nil && !volume.IsUncertain(err) {
		d.use(diskOf(s), false)
	}
	return err
}

func (d *disks) UnmountDevice(ctx context.Context, path string) error {
	err := podmount.TearDown(ctx, d.host.GetMounter(), path, mount.UnmountOptions{})
	if err == nil {
		d.use(filepath.Base(path), false)
	}
	return err
}

// diskVolume is a disk in a pod.
type diskVolume struct {
	disks       *disks
	dir, source string
	volume.NoMetrics
}

func (v *diskVolume) GetPath() string                  { return v.dir }
func (v *diskVolume) GetAttributes() volume.Attributes { return volume.Attributes{Managed: true} }
func (v *diskVolume) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return v.SetUpAt(ctx, v.dir, args)
}

func (v *diskVolume) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	_, err := podmount.SetUp(ctx, v.disks.host.GetMounter(), mount.Request{Source: v.source, Target: dir, Options: []string{"bind"}}, anyMount)
	return err
}

func (v *diskVolume) TearDown(ctx context.Context) error { return v.TearDownAt(ctx, v.dir) }
func (v *diskVolume) TearDownAt(ctx context.Context, dir string) error {
	return podmount.TearDown(ctx, v.disks.host.GetMounter(), dir, mount.UnmountOptions{})
}

func diskPod(name string, disks ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1.PodSpec{NodeName: "node1", Containers: []v1.Container{{Name: "main", Image: "none"}}}}
	for _, d := range disks {
		v := diskSource(d)
		pod.Spec.Volumes = append(pod.Spec.Volumes, *v)
		c := &pod.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return pod
}
