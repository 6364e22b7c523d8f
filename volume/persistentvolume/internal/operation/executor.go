// Package operation runs what takes long beside a controller: storage that is made,
// emptied or deleted. The controller looks at an object, asks for its operation, and looks
// again when that has ended.
package operation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/podvol/podvol/util/tracing"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/persistentvolume/release"
)

const (
	// maxOperations is how many run at the same time for one storage class.
	maxOperations = 16
	// Patience is after how long an operation counts as slow: the log tells
	// of it, and others of its class may begin.
	Patience = 30 * time.Second
)

// Config is what an [Executor] is made of.
type Config struct {
	// Again enqueues an object: its operation has ended, is slow, or may begin.
	Again func(volume.ObjectRef)
	// Reserve keeps the volume of a task for it until forget is called. It reports false
	// if another one works on the volume, or if a claim takes the volume and the task
	// removes its data; the task's object is enqueued then once the volume is free.
	Reserve func(Task) (forget func(), ok bool)
	// Watch watches an object until stop is called.
	Watch func(of volume.ObjectRef, changed func(volume.ObjectRef)) (stop func())
	// Slow is called once for each operation that is slow.
	Slow func(Task)
	// Tracer records a span for each attempt; nil: none.
	Tracer volume.Tracer
	// Activity counts the operations that run. The object of one that has ended
	// is enqueued before the count goes down.
	Activity *work.Activity
}

// Executor runs operations, one for a volume at a time ([Config].Reserve). One that fails
// waits, longer each time, before it may begin again. Its methods may be called from several
// goroutines.
type Executor struct {
	Config
	ctx context.Context // ends all operations

	mu      sync.Mutex
	slots   map[string]chan struct{} // by class
	all     map[string]*operation    // by key
	running sync.WaitGroup
}

// Task is what an operation is to do.
type Task struct {
	// Key names the operation: it is done once under a key. The first word names its span.
	Key string
	// Volume is the name of the PersistentVolume whose storage it works on.
	Volume string
	// Removes says that it removes the volume's data.
	Removes bool
	// Class is the storage class of the volume.
	Class string
	// About is the object that is enqueued when it has ended, and when it
	// may begin again.
	About volume.ObjectRef
	// On is the node where it works, if there is a choice: it may begin elsewhere
	// before it may begin there again.
	On string
	// Inherited says that an earlier process may have begun it.
	Inherited bool
	// Do does it, within its context.
	Do func(context.Context) error
}

// AwaitsError says that an operation cannot begin before something else changes. The change
// is told by [Executor.RetryNow].
type AwaitsError struct {
	// Err is why.
	Err error
	// HasChanged reports whether it has changed since the operation looked. It may do I/O.
	HasChanged func() bool
}

func (e *AwaitsError) Error() string { return e.Err.Error() }

// Unwrap returns why.
func (e *AwaitsError) Unwrap() error { return e.Err }

type operation struct {
	key     string
	about   volume.ObjectRef
	running bool
	// slow says of one that runs that it does so for long.
	slow error
	done bool
	// err is why it failed the last time; it waits until waiting is nil.
	err     error
	backoff work.Backoff
	waiting *time.Timer
	stops   []func()
	// tried is where it was tried since it was allowed to begin again by itself.
	tried []string
	// nodeRejected says that the choice of where the last attempt was made was taken
	// back for it.
	nodeRejected bool
	// uncertain says that an attempt, maybe an earlier process's, may have left
	// something behind.
	uncertain bool
	// dropped says that it is forgotten once it has ended.
	dropped bool
}

// State is how far an operation is.
type State int

// The states of an operation. One that was never begun is Failed, without an error.
const (
	Running State = iota
	Failed
	Done
	// Refused is the state of an operation that was not begun at all.
	Refused
)

// Status is what an executor knows of an operation.
type Status struct {
	State State
	// MayBegin says that Do would begin it.
	MayBegin bool
	// Err is why it failed, or says that it is slow. Failure is why it failed the
	// last time, also while it is tried again.
	Err, Failure error
	// Certain says that it was tried and has left nothing behind.
	Certain bool
	// NodeRejected says that the choice of the node of the last attempt was taken back.
	NodeRejected bool
}

// NewExecutor returns an executor for [Executor.Start].
func NewExecutor(config Config) *Executor {
	return &Executor{Config: config, slots: make(map[string]chan struct{}), all: make(map[string]*operation)}
}

// Start is called once, before Do: operations end with ctx.
func (o *Executor) Start(ctx context.Context) { o.ctx = ctx }

// Do says how far an operation is, after beginning it if it is not running,
// waiting or done. One that waits for its volume counts as running. The error is
// why it failed, or says that it is slow.
func (o *Executor) Do(t Task) (State, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := o.all[t.Key]
	switch {
	case op != nil && op.done:
		return Done, nil
	case op != nil && op.running:
		return Running, op.slow
	case op != nil && op.waiting != nil:
		return Failed, op.err
	}
	forget, ok := o.Reserve(t)
	if !ok {
		return Running, nil
	}
	if op == nil {
		op = &operation{key: t.Key, about: t.About, uncertain: t.Inherited}
		o.all[t.Key] = op
	}
	op.running, op.dropped, op.nodeRejected = true, false, false
	op.tried = append(op.tried, t.On)
	o.Activity.Add(1)
	o.running.Go(func() { o.finish(op, o.attempt(op, t), forget) })
	return Running, nil
}

// attempt does a task when there is a slot for it. One that hangs leaves its slot
// to others: calls that are never answered hold up no other for good.
func (o *Executor) attempt(op *operation, t Task) error {
	slots := o.slotsOf(t.Class)
	select {
	case slots <- struct{}{}:
	case <-o.ctx.Done():
		return volume.NothingDone(context.Cause(o.ctx))
	}
	leave := sync.OnceFunc(func() { <-slots })
	defer leave()
	defer time.AfterFunc(Patience, func() {
		leave()
		o.tellSlow(op, t)
	}).Stop()
	if o.Tracer == nil {
		return t.Do(o.ctx)
	}
	name, _, _ := strings.Cut(t.Key, " ")
	return tracing.Operation(o.ctx, o.Tracer, name, []slog.Attr{slog.String("podvol.object", t.About.String()), slog.String("podvol.persistentvolume", t.Volume),
		slog.String("podvol.storageclass", t.Class)}, t.Do)
}

func (o *Executor) slotsOf(class string) chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.slots[class] == nil {
		o.slots[class] = make(chan struct{}, maxOperations)
	}
	return o.slots[class]
}

func (o *Executor) tellSlow(op *operation, t Task) {
	o.mu.Lock()
	running := op.running
	if running {
		op.slow = fmt.Errorf("the plugin has not answered for %v; it is waited for, and nothing else waits for it", Patience)
	}
	o.mu.Unlock()
	if running {
		o.Slow(t)
		o.Again(t.About)
	}
}

func (o *Executor) finish(op *operation, err error, forget func()) {
	o.noteOutcome(op, err)
	if waits, ok := errors.AsType[*AwaitsError](err); ok && waits.HasChanged() {
		o.wake(op) // a change while it ran has not done so
	}
	forget()
	o.Again(op.about)
	o.Activity.Add(-1)
}

// noteOutcome notes how an operation has ended.
func (o *Executor) noteOutcome(op *operation, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op.running, op.slow, op.err, op.done = false, nil, err, err == nil
	if op.dropped {
		delete(o.all, op.key)
	}
	if op.dropped || err == nil || o.ctx.Err() != nil {
		return
	}
	op.uncertain = op.uncertain || volume.IsUncertain(err)
	op.waiting = time.AfterFunc(op.pauseAfter(err), func() { o.wake(op) })
	// A change of the data's users is the time for a retry.
	if inUse, ok := errors.AsType[*release.InUseError](err); ok {
		for _, use := range inUse.Uses {
			op.stops = append(op.stops, o.Watch(use.By, func(volume.ObjectRef) { go o.wake(op) }))
		}
	}
}

// pauseAfter counts a failure, and returns how long to wait. An object that was
// refused for its content is refused again until that changes, which ends the
// pause.
func (op *operation) pauseAfter(err error) time.Duration {
	pause := op.backoff.Fail(work.OperationPause, err)
	if _, refused := errors.AsType[*volume.InvalidSpecError](err); refused && !volume.IsUncertain(err) {
		return work.LastPause
	}
	return pause
}

// wake ends the pause of an operation.
func (o *Executor) wake(op *operation) {
	o.mu.Lock()
	if op.waiting == nil {
		o.mu.Unlock()
		return
	}
	op.tried = nil
	stops := op.endPause()
	o.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
	o.Again(op.about)
}

// RetryNow ends the pause of an operation that waits.
func (o *Executor) RetryNow(key string) {
	o.mu.Lock()
	op := o.all[key]
	o.mu.Unlock()
	if op != nil {
		o.wake(op)
	}
}

// endPause is called with the lock held; what it returns is to be called without.
func (op *operation) endPause() (stops []func()) {
	op.waiting.Stop()
	op.waiting = nil
	stops, op.stops = op.stops, nil
	return stops
}

// Move ends the pause of an operation that has left nothing behind if it is to be
// done where it was not tried yet.
func (o *Executor) Move(key, to string) {
	o.mu.Lock()
	op := o.all[key]
	if !op.mayMove(to) {
		o.mu.Unlock()
		return
	}
	stops := op.endPause()
	o.mu.Unlock()
	for _, stop := range stops {
		stop()
	}
}

// MayMove reports whether move would end the pause of an operation.
func (o *Executor) MayMove(key, to string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all[key].mayMove(to)
}

func (op *operation) mayMove(to string) bool {
	return op != nil && op.waiting != nil && !op.uncertain && to != "" && !slices.Contains(op.tried, to)
}

// Status says how far an operation is, without beginning it.
func (o *Executor) Status(key string) Status {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := o.all[key]
	switch {
	case op == nil:
		return Status{State: Failed, MayBegin: true}
	case op.done:
		return Status{State: Done, NodeRejected: op.nodeRejected}
	case op.running:
		return Status{State: Running, Err: op.slow, Failure: op.err, NodeRejected: op.nodeRejected}
	}
	now := Status{State: Failed, Failure: op.err, Certain: !op.uncertain, NodeRejected: op.nodeRejected}
	if now.MayBegin = op.waiting == nil; !now.MayBegin {
		now.Err = op.err
	}
	return now
}

// GiveUp says that an operation which failed has left nothing behind.
func (o *Executor) GiveUp(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.all[key]; op != nil && !op.running {
		op.uncertain = false
	}
}

// RejectNode notes that the node of the last attempt was rejected: the claim's annotation of
// the selected node was removed. It is done once for each attempt ([Status].NodeRejected).
func (o *Executor) RejectNode(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.all[key]; op != nil && !op.running {
		op.nodeRejected = true
	}
}

// Forget drops an operation, one that runs as soon as it has ended.
func (o *Executor) Forget(key string) {
	o.mu.Lock()
	op := o.all[key]
	if op != nil {
		op.dropped = op.running
	}
	if op == nil || op.running {
		o.mu.Unlock()
		return
	}
	delete(o.all, key)
	o.mu.Unlock()
	o.wake(op)
}

// Wait returns when nothing runs any more, after the context ended.
func (o *Executor) Wait() {
	o.running.Wait()
	o.mu.Lock()
	ops := make([]*operation, 0, len(o.all))
	for _, op := range o.all {
		ops = append(ops, op)
	}
	o.mu.Unlock()
	for _, op := range ops {
		o.wake(op)
	}
}
