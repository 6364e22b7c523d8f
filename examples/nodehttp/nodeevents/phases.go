package nodeevents

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

const (
	kindClaim  = "PersistentVolumeClaim"
	kindVolume = "PersistentVolume"
)

// Reasons of the events that [Ring.Follow] adds. A cluster has none of them: the objects tell it.
const (
	ReasonBound    = "Bound"
	ReasonReleased = "Released"
	ReasonDeleted  = "Deleted"
)

// Follow adds what the controllers' events leave out, since the objects show it: that a claim was
// bound, that a volume was released, and that either was deleted. What happened before is left out.
// It does so until stop is called.
func (r *Ring) Follow(store interface {
	objects.Source
	objects.Lister
}) (stop func()) {
	// A phase's time has whole seconds if it was read from a file.
	since := time.Now().Truncate(time.Second)
	changed := func(ref volume.ObjectRef) {
		object, err := store.Get(context.Background(), ref)
		if errors.Is(err, volume.ErrNotFound) {
			r.deleted(ref)
			return
		}
		if pv, ok := object.(*v1.PersistentVolume); ok && err == nil {
			r.phase(pv, since)
		}
	}
	stops := []func(){store.WatchKind(kindClaim, changed), store.WatchKind(kindVolume, changed)}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// deleted adds that an object was deleted, of which there may be several news.
func (r *Ring) deleted(ref volume.ObjectRef) {
	now := time.Now()
	r.mu.Lock()
	k := r.kind(ref.Kind)
	if last := k.last(ref.Namespace, ref.Name); last != nil && last.Value.(*Event).Reason == ReasonDeleted {
		last.Value.(*Event).Last = now
		k.events.MoveToBack(last)
	} else {
		k.add(&Event{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name, Type: v1.EventTypeNormal, Reason: ReasonDeleted, Message: "it is deleted", Count: 1, First: now, Last: now})
	}
	r.mu.Unlock()
	r.changed()
}

// last is the latest event of the objects of a name; nil: there is none.
func (k *kind) last(namespace, name string) *list.Element {
	for at := k.events.Back(); at != nil; at = at.Prev() {
		if e := at.Value.(*Event); e.Namespace == namespace && e.Name == name {
			return at
		}
	}
	return nil
}

// phase adds the phase of a volume, and of its claim, unless it is of before since.
func (r *Ring) phase(pv *v1.PersistentVolume, since time.Time) {
	at, claim := pv.Status.LastPhaseTransitionTime, pv.Spec.ClaimRef
	if at == nil || at.Time.Before(since) || claim == nil {
		return
	}
	e := Event{Kind: kindVolume, Name: pv.Name, UID: pv.UID, Type: v1.EventTypeNormal, Last: at.Time}
	switch pv.Status.Phase {
	case v1.VolumeBound:
		e.Reason, e.Message = ReasonBound, fmt.Sprintf("it is bound to claim %s/%s", claim.Namespace, claim.Name)
		r.once(&Event{Kind: kindClaim, Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, Type: v1.EventTypeNormal,
			Reason: ReasonBound, Message: "it is bound to volume " + pv.Name, Last: at.Time})
	case v1.VolumeReleased:
		e.Reason, e.Message = ReasonReleased, fmt.Sprintf("its claim %s/%s is gone; its reclaim policy is %s", claim.Namespace, claim.Name, pv.Spec.PersistentVolumeReclaimPolicy)
	default:
		return
	}
	r.once(&e)
}
