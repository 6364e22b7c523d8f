package volumetest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/volumetest/internal/specs"
)

// disk is note with every optional capability, each as small as it can be: a
// device is a directory of the node. The fields are what broken disks do
// otherwise.
type disk struct {
	*note
	attached memory
	diskStore

	devicePath  func(*volume.Spec) string
	mountDevice func(context.Context, mount.Request) error
	deviceRefs  func(path string) ([]string, error)
	attach      func(name string) error
	mapDevice   func(path string) error
	grow        func(size resource.Quantity) (resource.Quantity, error)
	growOnNode  func(path string) error
}

var (
	_ volume.AttachableVolumePlugin     = (*disk)(nil)
	_ volume.BlockVolumePlugin          = (*disk)(nil)
	_ volume.ExpandableVolumePlugin     = (*disk)(nil)
	_ volume.NodeExpandableVolumePlugin = (*disk)(nil)
	_ volume.RecyclableVolumePlugin     = (*disk)(nil)
	_ volume.DeletableVolumePlugin      = (*disk)(nil)
	_ volume.ProvisionableVolumePlugin  = (*disk)(nil)
)

func newDisk() volume.VolumePlugin { return alteredDisk(func(*disk) {})() }

// alteredDisk returns what makes disks with a defect.
func alteredDisk(alter func(*disk)) func() volume.VolumePlugin {
	return func() volume.VolumePlugin {
		d := &disk{note: &note{}}
		d.devicePath = func(spec *volume.Spec) string {
			name, _ := d.GetVolumeName(spec) // of which there may be several specs
			return filepath.Join(d.host.GetPluginDir(noteName), "mounts", hex.EncodeToString([]byte(filepath.Base(name))))
		}
		d.mountDevice = func(ctx context.Context, request mount.Request) error {
			_, err := podmount.SetUp(ctx, d.host.GetMounter(), request, func(mount.Entry) bool { return true })
			return err
		}
		d.deviceRefs = func(path string) ([]string, error) { return d.host.GetMounter().GetMountRefs(path) }
		d.attach = func(string) error { return nil }
		d.mapDevice = func(path string) error { return os.WriteFile(path, nil, 0o600) }
		d.grow = func(size resource.Quantity) (resource.Quantity, error) { return size, nil }
		d.growOnNode = func(string) error { return nil }
		d.diskStore = newDiskStore(d.note)
		alter(d)
		return d
	}
}

func diskSuite() Suite {
	return Suite{
		Working: []Case{{
			Name: "disk", Spec: noteDirectory(false), Shared: true,
			Prepare: func(n *Node) { n.Write(map[string]string{noteFile: noteText}) },
			Want:    Want{Files: map[string]File{noteFile: {Content: noteText}}},
		}, {
			Name: "block", Shared: true,
			Spec: func(n *Node) *volume.Spec {
				return PersistentBlock(v1.PersistentVolumeSource{FlexVolume: &v1.FlexPersistentVolumeSource{
					Driver: noteName, Options: map[string]string{"path": n.Dir}}})(n)
			},
		}},
		Storage: []StorageCase{{Name: "pool", Parameters: func(n *Node) map[string]string { return map[string]string{"pool": n.Dir} }}},
	}
}

func TestDiskPasses(t *testing.T) { Run(t, newDisk, diskSuite()) }

// NewMounter returns one that binds the device into the pod.
func (d *disk) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	m, err := d.newMounter(spec, pod)
	if err != nil {
		return nil, err
	}
	m.path = d.devicePath(spec)
	return diskMounter{m}, nil
}

type diskMounter struct{ *noteMounter }

func (m diskMounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

func (m diskMounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	if !mountedAt(&m.noteVolume, m.path) {
		return m.Error("SetUp", volume.NothingDone(fmt.Errorf("the device at %s: %w", m.path, mount.ErrNotMounted)))
	}
	return m.noteMounter.SetUpAt(ctx, dir, args)
}

func (d *disk) NewDeviceMounter() (volume.DeviceMounter, error)       { return diskDevice{d}, nil }
func (d *disk) NewDeviceUnmounter() (volume.DeviceUnmounter, error)   { return diskDevice{d}, nil }
func (d *disk) NewAttacher() (volume.Attacher, error)                 { return diskDevice{d}, nil }
func (d *disk) NewDetacher() (volume.Detacher, error)                 { return diskDevice{d}, nil }
func (d *disk) CanDeviceMount(*volume.Spec) (bool, error)             { return true, nil }
func (d *disk) CanAttach(context.Context, *volume.Spec) (bool, error) { return true, nil }
func (d *disk) RequiresFSResize() bool                                { return true }

func (d *disk) GetDeviceMountRefs(path string) ([]string, error) { return d.deviceRefs(path) }

type diskDevice struct{ *disk }

func (d diskDevice) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	return d.devicePath(spec), nil
}

func (d diskDevice) MountDevice(ctx context.Context, _ *volume.Spec, device, path string, _ volume.DeviceMounterArgs) error {
	return d.mountDevice(ctx, mount.Request{Source: device, Target: path, Options: []string{"bind"}})
}

func (d diskDevice) UnmountDevice(ctx context.Context, path string) error {
	return podmount.TearDown(ctx, d.host.GetMounter(), path, mount.UnmountOptions{})
}

func (d diskDevice) Attach(_ context.Context, spec *volume.Spec, _ types.NodeName) (string, error) {
	name, err := d.GetVolumeName(spec)
	if err != nil {
		return "", err
	}
	if err := d.attach(name); err != nil {
		return "", err
	}
	d.attached.add(name)
	return name, nil
}

func (d diskDevice) VolumesAreAttached(_ context.Context, specs []*volume.Spec, _ types.NodeName) (map[*volume.Spec]bool, error) {
	all := map[*volume.Spec]bool{}
	for _, spec := range specs {
		name, err := d.GetVolumeName(spec)
		if err != nil {
			return nil, err
		}
		all[spec] = d.attached.has(name)
	}
	return all, nil
}

func (d diskDevice) WaitForAttach(_ context.Context, _ *volume.Spec, path string, _ *v1.Pod, _ time.Duration) (string, error) {
	return path, nil
}

func (d diskDevice) Detach(_ context.Context, name string, _ types.NodeName) error {
	d.attached.remove(name)
	return nil
}

func (d *disk) NewBlockVolumeMapper(spec *volume.Spec, pod *v1.Pod) (volume.BlockVolumeMapper, error) {
	if !specs.IsBlock(spec) {
		return nil, volume.Invalid("spec.volumeMode", "must be Block")
	}
	plain := specs.Copy(spec)
	plain.PersistentVolume.Spec.VolumeMode = nil
	m, err := d.newMounter(plain, pod)
	if err != nil {
		return nil, err
	}
	return &diskBlock{m.noteVolume, d}, nil
}

func (d *disk) NewBlockVolumeUnmapper(name string, uid types.UID) (volume.BlockVolumeUnmapper, error) {
	u, err := d.newUnmounter(name, uid)
	if err != nil {
		return nil, err
	}
	return &diskBlock{u.noteVolume, d}, nil
}

func (d *disk) ConstructBlockVolumeSpec(ctx context.Context, _ types.UID, name, path string) (*volume.Spec, error) {
	rebuilt, err := d.ConstructVolumeSpec(ctx, name, path)
	return rebuilt.Spec, err
}

// diskBlock is a block volume whose device and link are empty files.
type diskBlock struct {
	noteVolume
	disk *disk
}

func (b *diskBlock) GetGlobalMapPath(spec *volume.Spec) (string, error) {
	return filepath.Join(b.Host.GetPluginDir(noteName), "volumeDevices", spec.Name()), nil
}

func (b *diskBlock) GetPodDeviceMapPath() (dir, name string) {
	return b.Host.GetPodPluginDir(b.PodUID, noteName), b.Name
}

func (b *diskBlock) path(kind string) string {
	dir, name := b.GetPodDeviceMapPath()
	return filepath.Join(dir, kind+name)
}

func (b *diskBlock) GetStagingPath() string { return b.path("staged-") }

func (b *diskBlock) SetUpDevice(context.Context) (string, error) {
	dir, _ := b.GetPodDeviceMapPath()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	return b.GetStagingPath(), os.WriteFile(b.GetStagingPath(), nil, 0o600)
}

func (b *diskBlock) MapPodDevice(context.Context) (string, error) {
	path := b.path("mapped-")
	return path, b.disk.mapDevice(path)
}

func (b *diskBlock) TearDownDevice(_ context.Context, _, staged string) error {
	return removeFile(staged)
}

func (b *diskBlock) UnmapPodDevice(context.Context) error { return removeFile(b.path("mapped-")) }

func removeFile(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d *disk) ExpandVolumeDevice(_ context.Context, _ *volume.Spec, size, _ resource.Quantity) (resource.Quantity, error) {
	return d.grow(size)
}

func (d *disk) NodeExpand(_ context.Context, options volume.NodeResizeOptions) (bool, error) {
	return true, d.growOnNode(options.DeviceMountPath)
}

// once returns a function that fails when it is called with a name again.
func once() func(name string) error {
	var done memory
	return func(name string) error {
		if done.has(name) {
			return errors.New("done already")
		}
		done.add(name)
		return nil
	}
}

func brokenDisks() []broken {
	all := []broken{
		{
			defect: "it never mounts a device once that has failed", breaks: "faults/setup-retried",
			also: []string{"faults/retry-at", "cancel/all-hangs", "cancel/before", "cancel/during", "cancel/hang"},
			plugin: alteredDisk(func(d *disk) {
				var bad memory
				mountDevice := d.mountDevice
				d.mountDevice = func(ctx context.Context, r mount.Request) error {
					if bad.has(r.Target) {
						return errors.New("the device is bad")
					}
					err := mountDevice(ctx, r)
					if err != nil {
						bad.add(r.Target)
					}
					return err
				}
			}),
		},
		{
			defect: "it mounts a device each time", breaks: "device/mount", also: []string{"restart/from-record"},
			plugin: alteredDisk(func(d *disk) {
				d.mountDevice = func(ctx context.Context, r mount.Request) error {
					if err := os.MkdirAll(r.Target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
						return err
					}
					return mount.Mount(ctx, d.host.GetMounter(), r)
				}
			}),
		},
		{
			defect: "its devices are mounted among the pods", breaks: "device/path",
			plugin: alteredDisk(func(d *disk) {
				d.devicePath = func(*volume.Spec) string { return d.host.GetPodVolumeDir("all", noteName, "device") }
			}),
		},
		{
			defect: "it does not know who uses a device", breaks: "device/refs",
			plugin: alteredDisk(func(d *disk) { d.deviceRefs = func(string) ([]string, error) { return nil, nil } }),
		},
		{
			defect: "it attaches just once", breaks: "attach/idempotent",
			also: []string{"faults/retry-at",
				"cancel/all-hangs", "cancel/before", "cancel/during", "cancel/hang", "concurrency/questions",
				"faults/setup-retried", "faults/teardown-set-up", "lifecycle/setup-again", "ownership/progress",
				"recycle/empties", "recycle/faults", "recycle/cancel", "provision/made", "provision/faults", "provision/crash",
				"provision/cancel", "provision/same-claim", "provision/several-claims",
				"delete/provisioned", "delete/released", "delete/given", "delete/faults", "delete/cancel",
			},
			maybe:  []string{"concurrency/pods", "concurrency/volumes"}, // all may attach at the same time
			plugin: alteredDisk(func(d *disk) { d.attach = once() }),
		},
		{
			defect: "it maps a device just once", breaks: "block/idempotent",
			plugin: alteredDisk(func(d *disk) { d.mapDevice = once() }),
		},
		{
			defect: "it grows by less than was asked for", breaks: "storage/expand",
			plugin: alteredDisk(func(d *disk) {
				d.grow = func(resource.Quantity) (resource.Quantity, error) { return resource.MustParse(oldSize), nil }
			}),
		},
		{
			defect: "it grows a file system just once", breaks: "storage/node-expand",
			plugin: alteredDisk(func(d *disk) { d.growOnNode = once() }),
		},
	}
	all = append(all, brokenStorage()...)
	for i := range all {
		all[i].suite = func(s *Suite) { *s = diskSuite() }
	}
	return all
}
