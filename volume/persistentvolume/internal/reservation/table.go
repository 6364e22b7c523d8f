package reservation

import (
	"context"
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// Queue enqueues objects, as the controller's queue does. It must not block.
type Queue interface {
	Enqueue(volume.ObjectRef)
	EnqueueAfterPause(volume.ObjectRef)
	EnqueueIfChanged(volume.ObjectRef)
}

// Config is what a [Table] is made of.
type Config struct {
	// Index finds the volume of a claim. Only the table holds volumes in it.
	Index *index.Index
	// Waiting finds the claim for a free volume.
	Waiting *index.Waiting
	// Queue takes the objects that may have something now.
	Queue Queue
}

// Table says who has a volume or a claim now. Its methods may be called from several
// goroutines; only [Table.ReserveWriting] waits.
type Table struct {
	Config

	mu      sync.Mutex
	holders map[resource]*Entry
	// lines are the entries that wait for a resource, in order.
	lines map[resource][]*Entry
	// asked are the objects that were refused a resource. With true the object is enqueued when
	// the resource is free; with false only if the object has changed.
	asked map[resource]map[volume.ObjectRef]bool
	// candidates are the volumes that claims were enqueued for, until these are synced.
	candidates map[types.NamespacedName][]string
}

// New returns a table without entries.
func New(config Config) *Table {
	return &Table{
		Config:     config,
		holders:    make(map[resource]*Entry),
		lines:      make(map[resource][]*Entry),
		asked:      make(map[resource]map[volume.ObjectRef]bool),
		candidates: make(map[types.NamespacedName][]string),
	}
}

// May returns nil if a claim may have the data of a volume as far as the table goes, and
// else an error that says who has it.
func (t *Table) May(claim index.ClaimID, volumeName string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if holder := t.holders[resource{of: data, volume: volumeName}]; holder != nil && holder.claim != claim {
		return fmt.Errorf("volume %q is kept for %v", volumeName, holder)
	}
	return nil
}

// IsAssumed reports whether a claim is about to be bound to a volume.
func (t *Table) IsAssumed(volumeName string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	holder := t.holders[resource{of: data, volume: volumeName}]
	return holder != nil && holder.kind == Assumed
}

// Match returns the volume that is reserved for a claim, or else the one that it would get:
// [index.Index.Match].
func (t *Table) Match(w index.Wanted) (*v1.PersistentVolume, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if holder := t.holders[resource{of: choice, claim: index.IDOf(w.Claim)}]; holder != nil && holder.kind == Assumed {
		return holder.volume, nil
	}
	return t.Index.Match(w)
}

// Reserve gives a claim the volume that fits ([index.Index.Match]) before all others, until
// the entry ends. A claim cannot choose twice: the second is an *[index.UnboundError] that
// matches [index.ErrReserved], and the claim is enqueued when the first has ended.
func (t *Table) Reserve(w index.Wanted) (*Entry, error) {
	id := index.IDOf(w.Claim)
	chosen := resource{of: choice, claim: id}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holders[chosen] != nil {
		return nil, t.reserved(chosen)
	}
	pv, err := t.Index.Match(w) // never one that another entry holds
	if err != nil {
		return nil, err
	}
	e := &Entry{kind: Assumed, claim: id, name: pv.Name, volume: pv, table: t, resources: []resource{chosen, {of: data, volume: pv.Name}}}
	t.begin(e)
	return e, nil
}

// ReserveProvisioning keeps a claim for a placement that has storage made for it. The error
// is as of [Table.Reserve].
func (t *Table) ReserveProvisioning(claim index.ClaimID) (*Entry, error) {
	e := &Entry{kind: Provisioning, claim: claim, table: t, resources: []resource{{of: choice, claim: claim}}}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inTheWay(e) != nil {
		return nil, t.reserved(e.resources[0])
	}
	t.begin(e)
	return e, nil
}

func (t *Table) reserved(chosen resource) error {
	t.ask(chosen, pvapi.ClaimRef(chosen.claim.NamespacedName), true)
	return &index.UnboundError{Claim: chosen.claim.NamespacedName, Err: index.ErrReserved}
}

// ReserveForPod keeps a claim for a pod. An earlier entry for the same pod ends. One for
// another pod stays, and is returned instead.
func (t *Table) ReserveForPod(claim types.NamespacedName, pod Pod) (e, other *Entry) {
	id := index.ClaimID{NamespacedName: claim}
	e = &Entry{kind: ForPod, claim: id, pod: pod, table: t, resources: []resource{{of: use, claim: id}}}
	t.mu.Lock()
	defer t.mu.Unlock()
	if other = t.inTheWay(e); other != nil && other.pod != pod {
		return nil, other
	}
	t.begin(e)
	return e, nil
}

// ForgetPods says that a claim is gone, and is kept for no pod.
func (t *Table) ForgetPods(claim types.NamespacedName) {
	t.forgetPod(claim, func(Pod) bool { return true })
}

// ForgetPod says that a claim is not kept for a pod, whichever had that name.
func (t *Table) ForgetPod(claim, pod types.NamespacedName) {
	t.forgetPod(claim, func(kept Pod) bool { return kept.NamespacedName == pod })
}

func (t *Table) forgetPod(claim types.NamespacedName, is func(Pod) bool) {
	t.mu.Lock()
	kept := t.holders[resource{of: use, claim: index.ClaimID{NamespacedName: claim}}]
	t.mu.Unlock()
	if kept != nil && is(kept.pod) {
		kept.Forget()
	}
}

// ReserveWriting waits for the turn to write a volume. The error is the cause of the end of
// ctx; a turn that is free is taken all the same.
func (t *Table) ReserveWriting(ctx context.Context, volumeName string) (*Entry, error) {
	e := t.writing(volumeName)
	t.mu.Lock()
	if t.inTheWay(e) == nil {
		t.begin(e)
		t.mu.Unlock()
		return e, nil
	}
	e.turn = make(chan struct{})
	t.lines[e.resources[0]] = append(t.lines[e.resources[0]], e)
	t.mu.Unlock()
	select {
	case <-e.turn:
		return e, nil
	case <-ctx.Done():
		e.Forget() // which leaves the line, or passes on a turn that has come just now
		return nil, context.Cause(ctx)
	}
}

// TryWriting takes the turn to write a volume if it is free. Else the volume is enqueued
// when it is.
func (t *Table) TryWriting(volumeName string) (*Entry, bool) {
	return t.try(t.writing(volumeName), pvapi.VolumeRef(volumeName), true)
}

// TryReading is TryWriting for a refresh: the volume is enqueued only if it has changed.
func (t *Table) TryReading(volumeName string) (*Entry, bool) {
	return t.try(t.writing(volumeName), pvapi.VolumeRef(volumeName), false)
}

func (t *Table) writing(volumeName string) *Entry {
	return &Entry{kind: Writing, name: volumeName, table: t, resources: []resource{{of: object, volume: volumeName}}}
}

// ReserveStorage keeps a volume's storage for an operation; one that removes it keeps also
// its data from all claims. If it is not free, the object that the operation is about is
// enqueued when it is.
func (t *Table) ReserveStorage(volumeName string, removes bool, about volume.ObjectRef) (*Entry, bool) {
	e := &Entry{kind: Making, name: volumeName, table: t, resources: []resource{{of: storage, volume: volumeName}}}
	if removes {
		e.kind, e.resources = Removing, append(e.resources, resource{of: data, volume: volumeName})
	}
	return t.try(e, about, true)
}

func (t *Table) try(e *Entry, about volume.ObjectRef, anyway bool) (*Entry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range e.resources {
		if t.holders[s] != nil {
			t.ask(s, about, anyway)
			return nil, false
		}
	}
	t.begin(e)
	return e, true
}

// The rest is called with the lock held, but for wake.

// inTheWay returns an entry that has what another one is to have.
func (t *Table) inTheWay(e *Entry) *Entry {
	for _, s := range e.resources {
		if holder := t.holders[s]; holder != nil {
			return holder
		}
	}
	return nil
}

// has reports whether an entry has not ended.
func (t *Table) has(e *Entry) bool { return t.holders[e.resources[0]] == e }

func (t *Table) begin(e *Entry) {
	for _, s := range e.resources {
		t.holders[s] = e
		if s.of == data {
			t.Index.Hold(s.volume, e.String())
		}
	}
}

func (t *Table) ask(s resource, about volume.ObjectRef, anyway bool) {
	if t.asked[s] == nil {
		t.asked[s] = make(map[volume.ObjectRef]bool)
	}
	t.asked[s][about] = t.asked[s][about] || anyway
}

// asker is an object that was refused something which is free now.
type asker struct {
	about  volume.ObjectRef
	anyway bool // also an object that has not changed
}

// end takes from an entry all that it has, or its place in a line, and returns who asked
// for that in vain.
func (t *Table) end(e *Entry) (asked []asker) {
	for _, s := range e.resources {
		if t.holders[s] != e {
			t.setLine(s, slices.DeleteFunc(t.lines[s], func(waits *Entry) bool { return waits == e }))
			continue
		}
		delete(t.holders, s)
		if s.of == data {
			t.Index.Hold(s.volume, "")
		}
		if line := t.lines[s]; len(line) > 0 {
			t.setLine(s, line[1:])
			t.begin(line[0])
			close(line[0].turn)
			continue
		}
		for about, anyway := range t.asked[s] {
			asked = append(asked, asker{about, anyway})
		}
		delete(t.asked, s)
	}
	return asked
}

func (t *Table) setLine(s resource, line []*Entry) {
	if len(line) == 0 {
		delete(t.lines, s)
		return
	}
	t.lines[s] = line
}

func (t *Table) wake(asked []asker) {
	for _, a := range asked {
		if a.anyway {
			t.Queue.Enqueue(a.about)
		} else {
			t.Queue.EnqueueIfChanged(a.about)
		}
	}
}
