package volumetest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
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

// staged is the device that a volume needs on the node.
type staged struct {
	plugin volume.DeviceMountableVolumePlugin
	mount  volume.DeviceMounter
	// name is the volume's, path where the device is mounted.
	name, path string
}

// staged returns the volume's device; nil where the plugin needs none for it.
func (v *podVolume) staged() (*staged, error) {
	p, ok := volume.AsDeviceMountable(v.node.plugin)
	if !ok {
		return nil, nil
	}
	if can, err := p.CanDeviceMount(v.spec); err != nil || !can {
		return nil, err
	}
	s := &staged{plugin: p}
	var err error
	if s.name, err = p.GetVolumeName(v.spec); err != nil {
		return nil, err
	}
	if s.mount, err = p.NewDeviceMounter(); err != nil {
		return nil, fmt.Errorf("NewDeviceMounter: %w", err)
	}
	if s.path, err = s.mount.GetDeviceMountPath(v.spec); err != nil {
		return nil, fmt.Errorf("GetDeviceMountPath: %w", err)
	}
	return s, nil
}

// stage attaches and mounts the volume's device, if it needs one, unless this
// process has done so.
func (v *podVolume) stage(ctx context.Context) error {
	s, err := v.staged()
	if err != nil || s == nil {
		return err
	}
	unlock, err := v.node.agent.locks.Lock(ctx, s.name)
	if err != nil {
		return volume.NothingDone(err)
	}
	defer unlock()
	v.node.devices.use(s.name, s.path, v.GetPath())
	if v.node.agent.isMounted(s.name) {
		return nil
	}
	attached, err := v.node.attach(ctx, v.spec, v.pod)
	if err != nil {
		return err
	}
	if err := s.mount.MountDevice(ctx, v.spec, attached, s.path, v.node.deviceArgs()); err != nil {
		return fmt.Errorf("MountDevice: %w", err)
	}
	v.node.agent.setMounted(s.name, true)
	return nil
}

func (n *Node) deviceArgs() volume.DeviceMounterArgs {
	return volume.DeviceMounterArgs{FsGroup: n.working.Args.FsGroup, SELinuxLabel: n.working.Args.SELinuxLabel}
}

// release unmounts and detaches the volume's device, if it has one and no pod
// is left that uses it.
func (v *podVolume) release(ctx context.Context) error {
	s, err := v.staged()
	if err != nil || s == nil {
		return err
	}
	unlock, err := v.node.agent.locks.Lock(ctx, s.name)
	if err != nil {
		return err
	}
	defer unlock()
	if !v.node.devices.leave(s.name, v.GetPath()) {
		return nil
	}
	u, err := s.plugin.NewDeviceUnmounter()
	if err != nil {
		return fmt.Errorf("NewDeviceUnmounter: %w", err)
	}
	v.node.agent.setMounted(s.name, false)
	if err := u.UnmountDevice(ctx, s.path); err != nil {
		return fmt.Errorf("UnmountDevice: %w", err)
	}
	return v.node.detach(ctx, v.spec, s.name)
}

// releaseMounted is release of a device that is mounted for certain: what a
// failed call has left of one stays.
func (v *podVolume) releaseMounted() {
	v.node.T().Helper()
	s, err := v.staged()
	if err != nil {
		v.node.T().Fatal(err)
	}
	if s != nil && v.node.agent.isMounted(s.name) {
		v.mustRelease()
	}
}

func (v *podVolume) mustStage() {
	v.node.T().Helper()
	if err := v.stage(v.node.T().Context()); err != nil {
		v.node.T().Fatal(err)
	}
}

func (v *podVolume) mustRelease() {
	v.node.T().Helper()
	if err := v.release(v.node.T().Context()); err != nil {
		v.node.T().Fatal(err)
	}
}

// attachable returns the plugin as one that attaches this spec's volume.
func (n *Node) attachable(spec *volume.Spec) (volume.AttachableVolumePlugin, bool, error) {
	p, ok := volume.AsAttachable(n.plugin)
	if !ok {
		return nil, false, nil
	}
	can, err := p.CanAttach(spec)
	return p, can && err == nil, err
}

// attach returns the path of the spec's device; empty where it is not
// attached.
func (n *Node) attach(ctx context.Context, spec *volume.Spec, pod *v1.Pod) (string, error) {
	p, can, err := n.attachable(spec)
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

func (n *Node) detach(ctx context.Context, spec *volume.Spec, name string) error {
	p, can, err := n.attachable(spec)
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

// AssertTornDown is that of [fakehost.Host], which bears with the directories that hold
// the places of the node's devices as well.
func (n *Node) AssertTornDown(t testing.TB) {
	t.Helper()
	n.Host.AssertTornDown(t, n.devices.isParent, n.isWorkPlace)
}

// isWorkPlace reports whether a path is the directory of a plugin that mounts
// for itself below it, or is above that.
func (n *Node) isWorkPlace(path string) bool {
	own := n.GetPluginDir(n.plugin.GetPluginName())
	_, works := volume.AsWorkMount(n.plugin)
	return works && (path == own || strings.HasPrefix(own, path+"/"))
}

// podMounts are the node's mounts without those of its devices.
func (n *Node) podMounts(t testing.TB) []string {
	t.Helper()
	n.devices.mu.Lock()
	defer n.devices.mu.Unlock()
	var targets []string
	for _, e := range n.Mounts(t) {
		if !n.devices.paths[e.Target] {
			targets = append(targets, e.Target)
		}
	}
	return targets
}
