package selfattach

import (
	"context"
	"errors"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/work"
)

// CanAttach reports whether an [Attacher] can attach by a plugin: it is a [volume.SpecAttacher],
// or a [volume.AttachableVolumePlugin] other than one that only looks whether another program
// has attached its volumes ([volume.AttachmentChecker]).
func CanAttach(p volume.VolumePlugin) bool { return attacherOf(p) != nil }

// attacher attaches the volumes of a plugin.
type attacher interface {
	AttachSpec(ctx context.Context, spec *volume.Spec, node types.NodeName) (volume.Attachment, error)
	DetachSpec(ctx context.Context, spec *volume.Spec, node types.NodeName) error
}

func attacherOf(p volume.VolumePlugin) attacher {
	if able, ok := p.(volume.SpecAttacher); ok {
		return able
	}
	if _, looks := volume.AsAttachmentChecker(p); looks {
		return nil
	}
	if able, ok := volume.AsAttachable(p); ok {
		return byName{able}
	}
	return nil
}

// byName attaches by a plugin that needs nothing but the name to detach.
type byName struct{ plugin volume.AttachableVolumePlugin }

func (b byName) AttachSpec(ctx context.Context, spec *volume.Spec, node types.NodeName) (volume.Attachment, error) {
	attacher, err := b.plugin.NewAttacher()
	if err != nil {
		return volume.Attachment{}, volume.NothingDone(err)
	}
	path, err := attacher.Attach(ctx, spec, node)
	return volume.Attachment{DevicePath: path}, err
}

func (b byName) DetachSpec(ctx context.Context, spec *volume.Spec, node types.NodeName) error {
	name, err := b.plugin.GetVolumeName(spec)
	if err != nil {
		return volume.NothingDone(err)
	}
	detacher, err := b.plugin.NewDetacher()
	if err != nil {
		return volume.NothingDone(err)
	}
	return detacher.Detach(ctx, name, node)
}

// attacherFor returns how a volume is attached, by its unique name; nil: not here.
func (a *Attacher) attacherFor(name v1.UniqueVolumeName) (found attacher) {
	length := 0
	for _, p := range a.config.Plugins {
		plugin := p.GetPluginName()
		if m := attacherOf(p); m != nil && len(plugin) > length && strings.HasPrefix(string(name), plugin+"/") {
			found, length = m, len(plugin)
		}
	}
	return found
}

// reconcile does what one volume needs now. One goroutine at a time does it for a volume.
func (a *Attacher) reconcile(ctx context.Context, name v1.UniqueVolumeName) work.Result {
	err := a.sync(ctx, name)
	if ctx.Err() == nil && !errors.Is(err, errBusy) {
		if what, isNew := a.outcome(name, err); isNew {
			a.log.Warn(what, "volume", name, "error", err)
		}
	}
	return work.Result{Reason: err}
}

// outcome notes that of an attempt. It says what has failed, if that is not known of the volume.
func (a *Attacher) outcome(name v1.UniqueVolumeName, err error) (what string, isNew bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	one, what := a.volumes[name], "attaching failed"
	if one == nil {
		return what, err != nil
	}
	if !one.inUse {
		what = "detaching failed"
	}
	text := ""
	if err != nil {
		text = what + ": " + err.Error()
	}
	isNew = err != nil && one.logged != text
	one.logged = text
	return what, isNew
}

func (a *Attacher) sync(ctx context.Context, name v1.UniqueVolumeName) error {
	share, err := a.sharing.lock(name, a.records.path(name))
	if err != nil {
		a.note(name, func(one *attachment) { one.err = err })
		return err
	}
	defer share.unlock()
	spec, now := a.begin(name)
	switch {
	case now == nil:
		return nil
	case now.Step == detaching:
		return a.detach(ctx, share, now)
	case now.Step == attached:
		err = share.enter()
		a.note(name, func(one *attachment) { one.shared, one.err = err == nil, err })
		return err
	}
	return a.attach(ctx, share, spec, now)
}

// begin decides what to do for a volume: the step of the record that it returns; nil: nothing.
// From then on the manager is not told that it is attached, unless it stays so.
func (a *Attacher) begin(name v1.UniqueVolumeName) (*volume.Spec, *record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.volumes[name]
	switch {
	case one == nil:
		return nil, nil
	case !one.inUse && one.record == nil:
		a.forget(one)
		return nil, nil
	case !one.inUse:
		next := *one.record
		next.Step = detaching
		one.record = &next
		return nil, &next
	case one.isAttached() && one.shared:
		return nil, nil
	case one.isAttached():
		return nil, one.record
	case one.spec == nil:
		return nil, nil // what is left of it is unmounted first
	}
	next := newRecord(name, one.spec, a.boot)
	one.record = next
	return one.spec, next
}

// note changes what is known of a volume, and has the manager told.
func (a *Attacher) note(name v1.UniqueVolumeName, change func(*attachment)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.volumes[name]; one != nil {
		change(one)
		one.since = time.Now()
		if one.record == nil && !one.inUse {
			a.forget(one)
		}
	}
	a.change()
	a.wake()
}

func (a *Attacher) attach(ctx context.Context, share *share, spec *volume.Spec, now *record) error {
	err := a.tryAttach(ctx, share, spec, now)
	if err == nil {
		return nil
	}
	var cleaned error
	a.mu.Lock()
	one := a.volumes[now.Volume]
	one.uncertain = one.uncertain || volume.IsUncertain(err)
	nothing := !one.uncertain
	a.mu.Unlock()
	if nothing {
		cleaned = a.erase(share, now)
	}
	a.note(now.Volume, func(one *attachment) {
		one.err = err
		if nothing && cleaned == nil {
			one.record = nil
		}
	})
	return errors.Join(err, cleaned)
}

// tryAttach records the volume, attaches it, and records the result.
func (a *Attacher) tryAttach(ctx context.Context, share *share, spec *volume.Spec, now *record) error {
	by := a.attacherFor(now.Volume)
	if by == nil {
		return volume.NothingDone(errors.New("no plugin here attaches it"))
	}
	if err := a.records.save(now); err != nil {
		return volume.NothingDone(err)
	}
	if err := share.enter(); err != nil {
		return err
	}
	result, err := by.AttachSpec(ctx, spec, a.config.NodeName)
	if err != nil {
		return err
	}
	next := *now
	next.Step, next.DevicePath, next.Metadata = attached, result.DevicePath, result.Metadata
	if err := a.records.save(&next); err != nil {
		return err
	}
	a.note(now.Volume, func(one *attachment) { one.record, one.shared, one.uncertain, one.err = &next, true, true, nil })
	return nil
}

// erase removes the record of a volume that this program does not have attached.
func (a *Attacher) erase(share *share, now *record) error {
	if err := a.records.remove(now.Volume); err != nil {
		return err
	}
	return share.leave()
}

func (a *Attacher) detach(ctx context.Context, share *share, now *record) error {
	err := a.tryDetach(ctx, share, now)
	a.note(now.Volume, func(one *attachment) {
		if one.err = err; err == nil {
			one.record, one.shared, one.uncertain = nil, false, false
		}
	})
	return err
}

// tryDetach detaches the volume, unless another program of this machine has it, and removes
// its record.
func (a *Attacher) tryDetach(ctx context.Context, share *share, now *record) error {
	other, err := share.other()
	if err != nil {
		return err
	}
	if other != "" {
		a.log.Info("a volume stays attached, as another program of this machine has it", "volume", now.Volume, "record", other, "entries", share.path)
		return a.erase(share, now)
	}
	by := a.attacherFor(now.Volume)
	if by == nil {
		return volume.NothingDone(errors.New("no plugin here detaches it"))
	}
	if err := a.records.save(now); err != nil {
		return err
	}
	if err := by.DetachSpec(ctx, now.spec(), a.config.NodeName); err != nil {
		return err
	}
	return a.erase(share, now)
}
