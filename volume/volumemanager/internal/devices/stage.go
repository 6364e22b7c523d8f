package devices

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// attachPatience is how long a reported device may take to appear, within what
// the attempt has left: the kubelet's.
const attachPatience = 10 * time.Minute

// Request is what one set-up of a volume, whose record is on disk, asks of its device.
type Request struct {
	Holder Holder
	Use    *Use // nil: nothing
	Spec   *volume.Spec
	Pod    *v1.Pod
	// Label is the SELinux label to mount with; empty: none.
	Label string
	// Mapper is the block volume's; nil for a file system.
	Mapper volume.BlockVolumeMapper
	// Args are for the mount of a file system.
	Args volume.DeviceMounterArgs
}

// Stage makes sure that the device of a set-up is there and mounted; without one
// it does nothing. Waiting for others that work on the device ends with ctx. The
// error is [Config].Unattached's where the device must be attached first.
func (t *Table) Stage(ctx context.Context, r Request) error {
	if r.Use == nil {
		return nil
	}
	t.keep(r)
	// No other caller unmounts a holder's device, so it needs no lock to see it.
	if there, err := t.staged(r); err != nil || there {
		return err
	}
	unlock, err := t.lock(ctx, r.Use, r.Spec, "MountDevice")
	if err != nil {
		return err
	}
	defer unlock()
	there, err := t.staged(r)
	if err != nil || there {
		return err
	}
	if err := t.relabel(ctx, r); err != nil {
		return err
	}
	devicePath, err := t.waitForAttach(ctx, r)
	if err != nil || !r.Use.HasPlace() {
		return err
	}
	if r.Mapper != nil {
		return t.setUpDevice(ctx, r, devicePath)
	}
	return t.mountDevice(ctx, r, devicePath)
}

func (t *Table) keep(r Request) {
	t.Lock.Lock()
	defer t.Lock.Unlock()
	if r.Use.HasPlace() {
		t.hold(r.Holder, r.Use.Key)
	}
}

func (t *Table) lock(ctx context.Context, use *Use, spec *volume.Spec, op string) (unlock func(), err error) {
	unlock, err = t.locks.Lock(ctx, use.Key.Name)
	if err != nil {
		return nil, use.busy(op, spec, err)
	}
	return unlock, nil
}

// LockVolume keeps others from working on the device of a volume until unlock is called.
// Waiting for it ends with ctx. The call of [Table.Stage] must have ended.
func (t *Table) LockVolume(ctx context.Context, name v1.UniqueVolumeName) (unlock func(), err error) {
	return t.locks.Lock(ctx, name)
}

// staged reports whether nothing is left to be done about the device.
func (t *Table) staged(r Request) (bool, error) {
	onTable, err := t.IsMountPoint(r.Use.Key.Path)
	if err != nil {
		return false, volume.NothingDone(err)
	}
	t.Lock.Lock()
	defer t.Lock.Unlock()
	if err := t.conflict(r); err != nil {
		return false, err
	}
	if !r.Use.HasPlace() {
		if r.Holder.IsMounted() {
			return true, nil
		}
	} else if d := t.devices[r.Use.Key]; d.mounted && !d.isMislabelled(r) && (onTable || !d.mountPoint) {
		return true, nil
	}
	return false, volume.NothingDone(t.CheckReports(r.Holder))
}

// relabel unmounts a device whose label is not the one asked for, for the only
// pod that has it. The caller holds the device's lock.
func (t *Table) relabel(ctx context.Context, r Request) error {
	t.Lock.Lock()
	d := t.devices[r.Use.Key]
	wrong := d != nil && d.isMislabelled(r)
	t.Lock.Unlock()
	if !wrong {
		return nil
	}
	if err := r.Use.unmount(ctx, r.Spec); err != nil {
		return err
	}
	t.set(r.Use.Key, state{})
	return nil
}

// waitForAttach waits until the device has appeared, and returns its path;
// empty where nothing is attached.
func (t *Table) waitForAttach(ctx context.Context, r Request) (string, error) {
	if r.Use.attach == nil {
		return "", nil
	}
	attacher, err := r.Use.attach.NewAttacher()
	if err != nil {
		return "", r.Use.Failed("NewAttacher", r.Spec, volume.NothingDone(err))
	}
	t.Lock.Lock()
	reported := t.attached[r.Use.Key.Name]
	t.Lock.Unlock()
	devicePath, err := attacher.WaitForAttach(ctx, r.Spec, reported, r.Pod, attachPatience)
	if err != nil { // and nothing is mounted
		return "", r.Use.Failed("WaitForAttach", r.Spec, volume.NothingDone(err))
	}
	return devicePath, nil
}

func (t *Table) mountDevice(ctx context.Context, r Request, devicePath string) error {
	key := r.Use.Key
	mounter, err := r.Use.mounts.NewDeviceMounter()
	if err != nil {
		return r.Use.Failed("NewDeviceMounter", r.Spec, volume.NothingDone(err))
	}
	before := t.set(key, state{touched: true, label: r.Label})
	if err := mounter.MountDevice(ctx, r.Spec, devicePath, key.Path, r.Args); err != nil {
		if !volume.IsUncertain(err) {
			t.set(key, before)
		}
		return r.Use.Failed("MountDevice", r.Spec, err)
	}
	after := state{touched: true, mounted: true, label: r.Label}
	if after.mountPoint, err = t.IsMountPoint(key.Path); err != nil {
		return r.Use.Failed("MountDevice", r.Spec, err)
	}
	t.set(key, after)
	return nil
}

// setUpDevice makes the device of a block volume ready on this node.
func (t *Table) setUpDevice(ctx context.Context, r Request, devicePath string) error {
	before := t.set(r.Use.Key, state{touched: true})
	if _, err := r.Mapper.SetUpDevice(ctx); err != nil {
		if !volume.IsUncertain(err) {
			t.set(r.Use.Key, before)
		}
		return r.Use.Failed("SetUpDevice", r.Spec, err)
	}
	t.set(r.Use.Key, state{touched: true, mounted: true, attachedAt: devicePath})
	return nil
}

// set notes what became of a device, and has the volumes tried again that waited for
// that. The caller holds the device's lock and has a volume
// among the holders.
func (t *Table) set(key Key, is state) (was state) {
	t.Lock.Lock()
	defer t.Lock.Unlock()
	d := t.devices[key]
	was, d.state = d.state, is
	t.wakeWaiters(d)
	return was
}

// Leaving is a volume whose own mount is gone.
type Leaving struct {
	Holder Holder
	Plugin volume.VolumePlugin
	Spec   *volume.Spec
	PodUID types.UID
	// Use is what the volume needs of its node; nil: that could not be said when its
	// record was found. Then it is asked for again, and the device counts as mounted.
	Use *Use
}

// Unstage lets go of the device of a volume, and unmounts it if no other volume
// has it. Only for that does it wait for other calls for the device.
func (t *Table) Unstage(ctx context.Context, l Leaving) error {
	use, err := t.useOf(ctx, l)
	if err != nil || !use.HasPlace() || t.LetGo(l.Holder, use) {
		return err
	}
	if err := t.Hidden(l.Plugin.GetPluginName()); err != nil {
		return use.Failed("UnmountDevice", l.Spec, fmt.Errorf("its device stays, since a volume of another pod may use it: %w", err))
	}
	unlock, err := t.lock(ctx, use, l.Spec, "UnmountDevice")
	if err != nil {
		return err
	}
	defer unlock()
	if !t.mustUnmount(l.Holder, use.Key) {
		return nil // another one came meanwhile
	}
	if use.block != nil {
		err = use.tearDown(ctx, l.Spec, l.PodUID, t.AttachedAt(use))
	} else {
		err = use.unmount(ctx, l.Spec)
	}
	if err != nil {
		return err
	}
	t.set(use.Key, state{})
	t.LetGo(l.Holder, use)
	t.Lock.Lock()
	defer t.Lock.Unlock()
	t.forgetLeft(use.Key) // it was staged before this manager, and is not any more
	return nil
}

func (t *Table) useOf(ctx context.Context, l Leaving) (*Use, error) {
	if l.Use != nil {
		return l.Use, nil
	}
	use, err := Of(l.Plugin, l.Spec, l.PodUID)
	if err != nil || !use.HasPlace() {
		return use, err
	}
	unlock, err := t.lock(ctx, use, l.Spec, "UnmountDevice")
	if err != nil {
		return nil, err
	}
	defer unlock()
	t.Lock.Lock()
	defer t.Lock.Unlock()
	t.hold(l.Holder, use.Key).touched = true
	return use, nil
}

// AttachedAt is where an attached device is; empty where nothing is attached, or no report
// says where.
func (t *Table) AttachedAt(use *Use) string {
	t.Lock.Lock()
	defer t.Lock.Unlock()
	if d := t.devices[use.Key]; d != nil && d.attachedAt != "" {
		return d.attachedAt
	}
	return t.attached[use.Key.Name]
}
