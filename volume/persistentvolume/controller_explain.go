package persistentvolume

import (
	"context"
	"errors"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/eventlog"
)

var (
	errBeingMade    = errors.New("its volume is being made")
	errBeingDeleted = errors.New("it is being deleted")
)

// ErrNotSynced says that a claim is so new, or has changed so lately, that the
// controller has not searched a volume for it yet.
var ErrNotSynced = errors.New("the controller has not searched a volume for it yet")

// Explain returns nil for a claim that has its volume, so that a node may mount
// it, and else why it has not: an *[index.UnboundError], whose Err may be what went
// wrong with making its volume. The error matches [claimbinding.ErrUnbound], and
// [volume.ErrNotFound] if there is no such claim. It is as the controller has
// seen it last; after [Controller.Idle], as it is, and until it was seen at all
// [ErrNotSynced]. There is no I/O.
func (c *Controller) Explain(claim types.NamespacedName) error {
	why := c.explain(claim)
	if why == nil {
		return nil
	}
	unbound, ok := errors.AsType[*index.UnboundError](why)
	if !ok {
		unbound = &index.UnboundError{Claim: claim, Err: why}
	}
	if errors.Is(unbound, claimbinding.ErrUnbound) {
		return unbound
	}
	return &stillUnbound{unbound}
}

// ExplainChanges says why a bound claim does not get the size or the attributes that it asks for
// beyond what it has: its class or plugin forbids it, an external controller is to do it, or the
// last attempt since the controller runs has failed. Nil says that nothing is in its way, or
// that the controller has not looked yet. There is no I/O.
func (c *Controller) ExplainChanges(name types.NamespacedName) error {
	claim, known := c.cluster.claims.Last(name)
	if !known || c.resizer == nil {
		return nil
	}
	return c.resizer.Missing(claim)
}

func (c *Controller) explain(name types.NamespacedName) error {
	claim, known := c.cluster.claims.Last(name)
	if !known {
		return &volume.ObjectNotFoundError{Ref: pvapi.ClaimRef(name)}
	}
	pv, _ := c.cluster.volumes.Last(types.NamespacedName{Name: claim.Spec.VolumeName})
	bound := claimbinding.Check(claim, pv)
	switch why := c.unbound.of(name); {
	case bound == nil:
		return nil
	case claim.Status.Phase == v1.ClaimLost:
		return bound
	case claim.DeletionTimestamp != nil:
		return errBeingDeleted
	case why != nil:
		return c.stillSo(name, why)
	}
	return ErrNotSynced
}

// stillSo renews the reasons why a claim cannot have volumes: new volumes that
// are not for it have not enqueued it.
func (c *Controller) stillSo(name types.NamespacedName, why error) error {
	unbound, ok := errors.AsType[*index.UnboundError](why)
	if !ok || unbound.Volume != "" || !errors.Is(unbound.Err, claimbinding.ErrUnbound) {
		return why
	}
	wanted, waits := c.waiting.Wanted(name)
	if !waits || wanted.Delayed {
		return why
	}
	_, err := c.table.Match(wanted)
	if err == nil {
		return ErrNotSynced // a volume has come that fits
	}
	now, ok := errors.AsType[*index.UnboundError](err)
	if !ok || now.Err != claimbinding.ErrUnbound {
		return err
	}
	next := *now
	next.Err = unbound.Err // which may say more
	return &next
}

// stillUnbound is an error of a claim that has no volume for a reason that has a
// sentinel of its own.
type stillUnbound struct{ *index.UnboundError }

func (e *stillUnbound) Unwrap() []error { return []error{e.UnboundError, claimbinding.ErrUnbound} }

// pendingClaims says of claims why they have no volume: to [Controller.Explain], by an event,
// and by their phase.
type pendingClaims struct {
	unbound *reasons
	events  *eventlog.Log
	status  statusKeeper
}

// leave is for a claim that waits. Without a reason for it, there is no event.
func (p *pendingClaims) leave(ctx context.Context, claim *v1.PersistentVolumeClaim, why error, e event) error {
	p.unbound.set(pvapi.NameOf(claim), why)
	if e.reason != "" {
		p.events.EventOnce(claim, e.eventType, e.reason, e.message, e.details)
	}
	return p.status.setPending(ctx, claim)
}

// reasons are why claims have no volume, as their last sync has found.
type reasons struct {
	// changed is ControllerConfig.Explained, if there is one.
	changed func(types.NamespacedName)

	mu  sync.Mutex
	all map[types.NamespacedName]reason
	// told are the texts with which changed was called last.
	told map[types.NamespacedName]string
}

type reason struct {
	err error
	// old says that the claim is being synced, and this may not hold any more.
	old bool
}

// markStale says that a claim is being synced.
func (r *reasons) markStale(claim types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if why, ok := r.all[claim]; ok {
		why.old = true
		r.all[claim] = why
	}
}

// set says why a claim has no volume.
func (r *reasons) set(claim types.NamespacedName, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = make(map[types.NamespacedName]reason)
	}
	r.all[claim] = reason{err: err}
}

// synced says that a claim has been synced, and what went wrong.
func (r *reasons) synced(claim types.NamespacedName, failed error) {
	if errors.Is(failed, objects.ErrConflict) {
		return // it is synced again at once, and that it has changed is no reason
	}
	if failed != nil {
		r.set(claim, failed)
	}
	if r.drop(claim) && r.changed != nil {
		r.changed(claim)
	}
}

// drop forgets a reason that does not hold any more, and reports whether it is
// another than was told last.
func (r *reasons) drop(claim types.NamespacedName) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[claim].old {
		delete(r.all, claim)
	}
	why, is := r.all[claim]
	before, was := r.told[claim]
	if !is {
		delete(r.told, claim)
		return was
	}
	text := why.err.Error()
	if r.told == nil {
		r.told = make(map[types.NamespacedName]string)
	}
	r.told[claim] = text
	return !was || text != before
}

func (r *reasons) of(claim types.NamespacedName) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[claim].err
}
