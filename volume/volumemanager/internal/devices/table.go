// Package devices knows the devices that are mounted once per node for the pods of it, which
// volumes need them, and which must be attached first:
//
//	use.go     what a volume needs of its node, and the plugin's calls for that
//	table.go   which volumes hold a device, and with which label it is mounted
//	mapping.go publish a block volume's device to a pod
//	stage.go   mount it before the first volume, unmount it after the last
//	attach.go  which devices are reported attached, and in use
//	left.go    what an earlier owner of the root has left mounted: report and undo it
//
// A device has no record of its own: it is known from its volumes' records. Each
// stays until its volume has let go of the device. So whatever crashes when, the
// next tear-down of the last volume finds the device. What a kubelet has left has no
// records: its plugin finds it on disk.
package devices

import (
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// Holder is one volume of a pod. Its methods are called with the [Config]'s lock held.
type Holder interface {
	// Holding is what the table keeps of the volume; it is the table's alone.
	Holding() *Holding
	// Exists reports whether something of the volume may be on disk.
	Exists() bool
	// IsWanted reports whether its pod wants it; IsMounted, whether it is mounted.
	IsWanted() bool
	IsMounted() bool
	// Resync has it reconciled at once, if it is wanted.
	Resync()
	// Proceed has it reconciled if it waits for reports, which are there now, or has
	// failed.
	Proceed()
	// Publish tells of its status.
	Publish()
}

// Holding is what a [Table] keeps of one volume. The zero value: nothing.
type Holding struct {
	attachment *attachment // nil: nothing attachable
	unsure     bool        // whether it is attachable; it counts as in use, and waits for nothing
	labelled   *device     // whose label the volume waits for to go; nil: none
}

// Config is what a [Table] is made of.
type Config struct {
	// Lock guards the table together with its owner's state. The methods whose
	// comments say so are called with it held; the others take it.
	Lock sync.Locker
	// IsMountPoint looks a path up in the mount table.
	IsMountPoint func(path string) (bool, error)
	// Hidden says why there may be volumes of a plugin that are not known; nil: there
	// are none.
	Hidden func(plugin string) error
	// Unattached makes the error of a volume whose reports are missing.
	Unattached func(Reports) error
}

// Table is the devices of one node.
type Table struct {
	Config
	locks keylock.Map[v1.UniqueVolumeName]

	devices     map[Key]*device
	attachments map[v1.UniqueVolumeName]*attachment
	reported    map[v1.UniqueVolumeName]struct{} // in use, in the node's status
	left        map[Key]struct{}                 // of an earlier owner, in use as long as they are staged
	doubts      []Doubt                          // what may be staged, too
	attached    map[v1.UniqueVolumeName]string   // with the devices' paths; nil until they are reported

	completed chan struct{} // closed by complete
	complete  func()
}

// New returns the table of a node whose volumes are not known yet.
func New(config Config) *Table {
	completed := make(chan struct{})
	return &Table{Config: config, devices: make(map[Key]*device), attachments: make(map[v1.UniqueVolumeName]*attachment), left: make(map[Key]struct{}),
		completed: completed, complete: sync.OnceFunc(func() { close(completed) })}
}

// device is a device that is mounted for the pods of this node, or may be.
type device struct {
	// holders are the volumes that keep it mounted, each of which has a record on
	// disk. A volume that lets go while there are others is done; the last one
	// unmounts first.
	holders map[Holder]struct{}
	// waiters are the volumes that wait until the others have let go, or have the
	// device mounted with their label, since it is mounted with another. With the
	// labels that they ask for.
	waiters map[Holder]string
	state
}

// state changes only under the device's lock.
type state struct {
	// touched: it may be mounted, or half mounted.
	touched bool
	// mounted: it is, and mountPoint says whether the mount table showed it. A
	// block volume's device is set up instead, which no mount table shows.
	mounted, mountPoint bool
	// label is the SELinux label that it is mounted with, if touched; empty: none.
	label string
	// attachedAt is where a block volume's attached device is, if it is known.
	attachedAt string
}

// hold makes a volume with a record on disk count as one that keeps the device.
// The caller holds the lock.
func (t *Table) hold(h Holder, key Key) *device {
	d := t.devices[key]
	if d == nil {
		d = &device{holders: make(map[Holder]struct{}), waiters: make(map[Holder]string)}
		t.devices[key] = d
	}
	d.holders[h] = struct{}{}
	return d
}

// letGoUnlessLast takes a volume off the device, unless it is the last one and the device
// may be mounted. A volume that was let go may remove its record. The caller holds
// the lock.
func (t *Table) letGoUnlessLast(h Holder, key Key) bool {
	d := t.devices[key]
	if d == nil {
		return true
	}
	if _, held := d.holders[h]; held && d.touched && len(d.holders) == 1 {
		return false
	}
	t.removeHolder(h, key)
	return true
}

// removeHolder takes a volume off a device, of which it has nothing after all. The
// caller holds the lock.
func (t *Table) removeHolder(h Holder, key Key) {
	d := t.devices[key]
	if d == nil {
		return
	}
	delete(d.holders, h)
	if len(d.holders) == 0 {
		delete(t.devices, key)
	}
	t.wakeWaiters(d)
}

// LetGo takes a volume off its device. It reports false where the volume is the last one
// and the device may be mounted: then its record must stay.
func (t *Table) LetGo(h Holder, use *Use) bool {
	if use == nil {
		return true
	}
	t.Lock.Lock()
	defer t.Lock.Unlock()
	return t.letGoUnlessLast(h, use.Key)
}

// mustUnmount lets go, or says that the volume is the last one: then each volume that comes
// from now on finds the device unmounted, and waits for its lock, which the caller holds.
func (t *Table) mustUnmount(h Holder, key Key) bool {
	t.Lock.Lock()
	defer t.Lock.Unlock()
	if t.letGoUnlessLast(h, key) {
		return false
	}
	t.devices[key].mounted = false
	return true
}

// Pass makes another entry the holder of what a volume has. The caller holds the lock.
func (t *Table) Pass(from, to Holder, use *Use) {
	if use == nil {
		return
	}
	t.Join(to, use)
	if use.HasPlace() {
		t.hold(to, use.Key)
		t.removeHolder(from, use.Key)
	}
}

// Admit refuses to have a volume set up while its device is mounted with another label for
// others; it is resynced when they have let go. It takes the volume off the device before,
// which was guessed wrongly. The caller holds the lock.
func (t *Table) Admit(r Request, before *Use) error {
	if err := t.conflict(r); err != nil {
		return err
	}
	if before != nil && r.Use != nil && before.Key != r.Use.Key {
		t.removeHolder(r.Holder, before.Key)
	}
	return nil
}

// Recover makes a volume whose record was found count again. The caller holds the lock.
func (t *Table) Recover(h Holder, use *Use, record *mountrecord.Record, mounted rootdir.Mounts) {
	t.Join(h, use)
	if !use.HasPlace() {
		return
	}
	d := t.hold(h, use.Key)
	d.recoverLabel(use.Key.Path, record, mounted)
	d.touched = true
	switch c := record.Confirmed; {
	case c == nil:
	case c.Device != nil && mounted.Has(c.Device.Bind):
		d.mounted = true
	case c.MountPoint && mounted.Has(record.Path) && mounted.Has(use.Key.Path):
		d.mounted, d.mountPoint = true, true
	}
}

// MountPoint is where the volume's device is mounted, if the mount table shows it; empty:
// nowhere. The caller holds the lock.
func (t *Table) MountPoint(use *Use) string {
	if use == nil {
		return ""
	}
	if d := t.devices[use.Key]; d != nil && d.mounted && d.mountPoint {
		return use.Key.Path
	}
	return ""
}

// recoverLabel finds out which label the device is mounted with. A confirmed
// record says it; another may have been written by a set-up that was about to
// find out that the label is another one, so it is asked for in the mount table.
func (d *device) recoverLabel(path string, record *mountrecord.Record, mounted rootdir.Mounts) {
	switch {
	case record.Confirmed != nil:
		d.label = record.SELinuxLabel
	case d.touched: // another record says it, or did already
	case mounted.Has(path):
		d.label = mounted.Label(path)
	default:
		d.label = record.SELinuxLabel
	}
}

// labelConflict says that a device is mounted with one SELinux label for another pod on
// this node, and is asked for with another; empty: none. The volume is mounted when
// those pods have gone.
func labelConflict(name, mounted, asked string) error {
	return &volume.Failure{
		Cause: selinux.ErrConflict, Subject: name,
		What: fmt.Sprintf("conflicting SELinux labels of volume %s: %q and %q", name, mounted, asked),
		Next: "it waits until the pods with the former have left this node, or set seLinuxChangePolicy of both pods to Recursive",
	}
}

// conflict says that the device is mounted with another label for others; then
// the volume is tried again when they have let go of it. The caller holds the
// lock.
func (t *Table) conflict(r Request) error {
	if r.Use == nil {
		return nil
	}
	d := t.devices[r.Use.Key]
	if d == nil || !d.isMislabelled(r) || !d.isOthers(r.Holder) {
		return nil
	}
	t.waitForLabel(r.Holder, d, r.Label)
	return volume.NothingDone(labelConflict(r.Spec.Name(), d.label, r.Label))
}

// StopWaiting makes a volume wait for no label any more. The caller holds the lock.
func (t *Table) StopWaiting(h Holder) {
	holding := h.Holding()
	if holding.labelled != nil {
		delete(holding.labelled.waiters, h)
		holding.labelled = nil
	}
}

// waitForLabel makes the volume wait until it can have the device with its label. The caller
// holds the lock.
func (t *Table) waitForLabel(h Holder, d *device, label string) {
	t.StopWaiting(h)
	h.Holding().labelled = d
	d.waiters[h] = label
}

// isOthers reports whether others than the volume keep the device as it is
// mounted. The caller holds the lock.
func (d *device) isOthers(h Holder) bool {
	_, held := d.holders[h]
	return d.touched && (len(d.holders) > 1 || !held && len(d.holders) == 1)
}

// wakeWaiters has the volumes tried again that no other label keeps from the
// device any more. The caller holds the lock.
func (t *Table) wakeWaiters(d *device) {
	for h, label := range d.waiters {
		if d.isOthers(h) && d.label != label {
			continue
		}
		t.StopWaiting(h)
		h.Resync()
	}
}

func (d *device) isMislabelled(r Request) bool {
	return r.Mapper == nil && d.touched && d.label != r.Label
}
