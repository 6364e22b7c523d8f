package sim

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
)

// devices are the devices of a node, by the names of their volumes, as a
// node's volume manager keeps them: a device is mounted before the first pod
// that uses it is served, and unmounted after the last.
type devices struct {
	mu sync.Mutex
	// users are the pods' volumes that use the device, by their paths.
	users map[string]map[string]bool
	paths map[string]bool
}

func newDevices() *devices {
	return &devices{users: map[string]map[string]bool{}, paths: map[string]bool{}}
}

func (d *devices) use(name, devicePath, user string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users[name] == nil {
		d.users[name] = map[string]bool{}
	}
	d.users[name][user] = true
	d.paths[devicePath] = true
}

// leave reports whether the user was the last.
func (d *devices) leave(name, user string) (last bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.users[name], user)
	return len(d.users[name]) == 0
}

// isParent reports whether a directory holds the place of some device.
func (d *devices) isParent(dir string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for path := range d.paths {
		if strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}

// agent is what the process on a node knows of its devices; it is lost when
// the process ends.
type agent struct {
	locks   keylock.Map[string]
	mu      sync.Mutex
	mounted map[string]bool // by the volume's name
}

func (a *agent) setMounted(name string, mounted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mounted == nil {
		a.mounted = map[string]bool{}
	}
	a.mounted[name] = mounted
}

func (a *agent) isMounted(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mounted[name]
}

// Device is the device that a volume needs on the node.
type Device struct {
	Plugin volume.DeviceMountableVolumePlugin
	Mount  volume.DeviceMounter
	// Name is the volume's, Path where the device is mounted.
	Name, Path string
}

// Device returns the volume's device; nil where the plugin needs none for it.
func (v *Volume) Device() (*Device, error) {
	p, ok := volume.AsDeviceMountable(v.node.Plugin)
	if !ok {
		return nil, nil
	}
	can, err := p.CanDeviceMount(v.Spec)
	if err != nil {
		return nil, fmt.Errorf("CanDeviceMount: %w", err)
	}
	if !can {
		return nil, nil
	}
	s := &Device{Plugin: p}
	if s.Name, err = p.GetVolumeName(v.Spec); err != nil {
		return nil, err
	}
	if s.Mount, err = p.NewDeviceMounter(); err != nil {
		return nil, fmt.Errorf("NewDeviceMounter: %w", err)
	}
	if s.Path, err = s.Mount.GetDeviceMountPath(v.Spec); err != nil {
		return nil, fmt.Errorf("GetDeviceMountPath: %w", err)
	}
	return s, nil
}

// stage attaches and mounts the volume's device, if it needs one, unless this
// process has done so.
func (v *Volume) stage(ctx context.Context) error {
	s, err := v.Device()
	if err != nil || s == nil {
		return err
	}
	unlock, err := v.node.agent.locks.Lock(ctx, s.Name)
	if err != nil {
		return volume.NothingDone(err)
	}
	defer unlock()
	v.node.devices.use(s.Name, s.Path, v.GetPath())
	if v.node.agent.isMounted(s.Name) {
		return nil
	}
	attached, err := v.node.Attach(ctx, v.Spec, v.Pod)
	if err != nil {
		return err
	}
	if err := s.Mount.MountDevice(ctx, v.Spec, attached, s.Path, v.DeviceArgs()); err != nil {
		return fmt.Errorf("MountDevice: %w", err)
	}
	v.node.agent.setMounted(s.Name, true)
	return nil
}

// DeviceArgs are the wishes of the volume's pod about its device.
func (v *Volume) DeviceArgs() volume.DeviceMounterArgs {
	return volume.DeviceMounterArgs{FsGroup: v.args.FsGroup, SELinuxLabel: v.args.SELinuxLabel}
}

// release unmounts and detaches the volume's device, if it has one and no pod
// is left that uses it.
func (v *Volume) release(ctx context.Context) error {
	s, err := v.Device()
	if err != nil || s == nil {
		return err
	}
	unlock, err := v.node.agent.locks.Lock(ctx, s.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if !v.node.devices.leave(s.Name, v.GetPath()) {
		return nil
	}
	u, err := s.Plugin.NewDeviceUnmounter()
	if err != nil {
		return fmt.Errorf("NewDeviceUnmounter: %w", err)
	}
	v.node.agent.setMounted(s.Name, false)
	if err := u.UnmountDevice(ctx, s.Path); err != nil {
		return fmt.Errorf("UnmountDevice: %w", err)
	}
	return v.node.Detach(ctx, v.Spec, s.Name)
}

// ReleaseMounted is MustRelease of a device that is mounted for certain: what a
// failed call has left of one stays.
func (v *Volume) ReleaseMounted() {
	v.node.t.Helper()
	s, err := v.Device()
	if err != nil {
		v.node.t.Fatal(err)
	}
	if s != nil && v.node.agent.isMounted(s.Name) {
		v.MustRelease()
	}
}

// MustStage attaches and mounts the volume's device, if it needs one.
func (v *Volume) MustStage() {
	v.node.t.Helper()
	if err := v.stage(v.node.t.Context()); err != nil {
		v.node.t.Fatal(err)
	}
}

// MustRelease undoes MustStage, if no other pod uses the device.
func (v *Volume) MustRelease() {
	v.node.t.Helper()
	if err := v.release(v.node.t.Context()); err != nil {
		v.node.t.Fatal(err)
	}
}

// attachable returns the plugin as one that attaches this spec's volume.
func (n *Node) attachable(ctx context.Context, spec *volume.Spec) (volume.AttachableVolumePlugin, bool, error) {
	p, ok := volume.AsAttachable(n.Plugin)
	if !ok {
		return nil, false, nil
	}
	can, err := p.CanAttach(ctx, spec)
	return p, can && err == nil, err
}

// Attach returns the path of the spec's device; empty where it is not
// attached.
func (n *Node) Attach(ctx context.Context, spec *volume.Spec, pod *v1.Pod) (string, error) {
	p, can, err := n.attachable(ctx, spec)
	if err != nil || !can {
		return "", err
	}
	a, err := p.NewAttacher()
	if err != nil {
		return "", fmt.Errorf("NewAttacher: %w", err)
	}
	path, err := a.Attach(ctx, spec, fakehost.NodeName)
	if err != nil {
		return "", fmt.Errorf("attaching: %w", err)
	}
	if path, err = a.WaitForAttach(ctx, spec, path, pod, time.Minute); err != nil {
		return "", fmt.Errorf("WaitForAttach: %w", err)
	}
	return path, nil
}

// Detach undoes Attach; name is the volume's.
func (n *Node) Detach(ctx context.Context, spec *volume.Spec, name string) error {
	p, can, err := n.attachable(ctx, spec)
	if err != nil || !can {
		return err
	}
	d, err := p.NewDetacher()
	if err != nil {
		return fmt.Errorf("NewDetacher: %w", err)
	}
	if err := d.Detach(ctx, name, fakehost.NodeName); err != nil {
		return fmt.Errorf("detaching: %w", err)
	}
	return nil
}
