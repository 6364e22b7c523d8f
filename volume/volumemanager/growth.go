package volumemanager

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/growth"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// growingEntry is the [growth.Entry] of a set-up.
type growingEntry struct {
	*operationExecutor
	u     *setUp
	name  v1.UniqueVolumeName
	claim types.NamespacedName
}

// followGrowth finds out what is known of the volume's size, and notes it in the record that is
// about to be stored. It does nothing for a volume that has no claim, or whose plugin has no
// part on the node.
func (o *operationExecutor) followGrowth(u *setUp, claim *v1.PersistentVolumeClaim) error {
	plugin, able := volume.AsNodeExpandable(u.plugin)
	if !able || claim == nil {
		return nil
	}
	name, err := u.plugin.GetVolumeName(u.spec)
	if err != nil {
		return err
	}
	e := growingEntry{o, u, v1.UniqueVolumeName(u.record.Plugin + "/" + name), types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}}
	u.growing = &growth.Volume{Entry: e, Plugin: plugin, Spec: u.spec, Pod: u.pod, Record: u.record, Claim: claim}
	u.record.Size = u.growing.Reached()
	o.entries.Lock()
	u.online = u.of.IsMounted()
	o.entries.Unlock()
	if growth.IsInfeasible(claim) {
		e.Refuse(growth.Refusal{}) // the claim remembers it, and a controller may ask anew
	}
	return nil
}

// Lock implements [growth.Entry].
func (e growingEntry) Lock(ctx context.Context) (unlock func(), err error) {
	return e.needs.devices.LockVolume(ctx, e.name)
}

// Siblings implements [growth.Entry].
func (e growingEntry) Siblings() (records []*mountrecord.Record, refusals []growth.Refusal) {
	e.entries.Lock()
	defer e.entries.Unlock()
	for s := range e.status.claims.Of(e.claim) {
		if r := s.actual.record; r != nil && r.PersistentVolumeName() == e.u.spec.Name() {
			records = append(records, r)
		}
		refusals = append(refusals, s.growth)
	}
	return records, refusals
}

// Note implements [growth.Entry].
func (e growingEntry) Note(size resource.Quantity) error {
	is := e.actual.of(e.u.of)
	record, own := *is.record, *e.u.record // which others may be reading
	record.Size, own.Size = &size, &size
	digest, err := rootdir.DigestOfRecord(&record)
	if err != nil {
		return err
	}
	if err := e.records.Rewrite(e.u.key, &record); err != nil {
		return err
	}
	is.record, is.digest, e.u.record, e.u.digest = &record, digest, &own, digest
	e.actual.set(e.u.of, is)
	return nil
}

// Refuse implements [growth.Entry].
func (e growingEntry) Refuse(r growth.Refusal) {
	e.entries.Lock()
	defer e.entries.Unlock()
	e.u.of.growth = r
}

// growDevice grows a file system on its device before the pod's volume is set up. A mounted
// volume, which a refresh must not wait for, grows after that.
func (o *operationExecutor) growDevice(ctx context.Context, u *setUp) error {
	if u.growing.IsDone() || u.online || u.mapping != nil || u.device == nil {
		return nil
	}
	path := u.device.Key.Path
	return o.grower.Grow(ctx, u.growing, volume.NodeResizeOptions{DevicePath: o.needs.devices.AttachedAt(u.device), DeviceMountPath: path, DeviceStagePath: path})
}

// growMounted grows what growDevice has not: a volume that was mounted before, a block volume,
// or one whose plugin wants to be called now.
func (o *operationExecutor) growMounted(ctx context.Context, u *setUp) error {
	if u.growing.IsDone() {
		return nil
	}
	var at volume.NodeResizeOptions
	switch {
	case u.mapping != nil:
		at.DevicePath = u.mapping.Published
	case u.device != nil:
		at.DevicePath, at.DeviceStagePath = o.needs.devices.AttachedAt(u.device), u.device.Key.Path
		fallthrough
	default:
		at.DeviceMountPath = u.mounter.GetPath()
	}
	return o.grower.GrowMounted(ctx, u.growing, at)
}

// nextReport says when a claim that could not be told of its growth is told; zero: there is none.
func (u *setUp) nextReport() time.Time {
	late := u.growing.Late()
	if late == nil {
		u.of.unreported.Reset()
		return time.Time{}
	}
	return time.Now().Add(u.of.unreported.Fail(work.OperationPause, late))
}
