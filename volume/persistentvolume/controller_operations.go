package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/persistentvolume/release"
)

const (
	// operationPause is the pause after the first failure of an operation:
	// the kubelet's.
	operationPause = 500 * time.Millisecond
	// maxOperations is how many run at the same time for one storage class.
	maxOperations = 16
	// operationPatience is after how long an operation counts as slow: it is told
	// of, and others of its class may begin.
	operationPatience = 30 * time.Second
)

// operations are what takes long: making storage, emptying it, deleting it.
// There is one for a volume at a time, be it for several releases of it or for
// several that had its name; one that fails waits, longer each time, before it
// may begin again.
type operations struct {
	again func(volume.ObjectRef)                                       // has an object looked at
	watch func(volume.ObjectRef, func(volume.ObjectRef)) (stop func()) // of an object

	// activity counts those that run, until what they are about is to be looked
	// at again.
	activity *work.Activity

	ctx  context.Context // what is begun ends with it
	slow func(task)      // is called once for each that is slow

	mu      sync.Mutex
	slots   map[string]chan struct{} // by class
	all     map[string]*operation    // by key
	at      map[string]*operation    // those that run, by volume
	running sync.WaitGroup
}

// task is what an operation is to do.
type task struct {
	// key names what it is: what was done under one key is not done again.
	key string
	// volume is the name of the PersistentVolume whose storage it works on.
	volume string
	// class is the storage class of that.
	class string
	// about is the object that is looked at again when it has ended, and when it
	// may begin again.
	about volume.ObjectRef
	// on is where it works, if there is a choice: it may begin elsewhere before it
	// may begin there again.
	on string
	// inherited says that an earlier process may have begun it.
	inherited bool
	do        func(context.Context) error
}

type operation struct {
	key     string
	about   volume.ObjectRef
	running bool
	// next are the objects whose own operations wait for this one to end.
	next []volume.ObjectRef
	// slow says of one that runs that it does so for long.
	slow error
	done bool
	// err is why it failed the last time; it waits until waiting is nil.
	err      error
	failures int
	waiting  *time.Timer
	stops    []func()
	// tried is where it was tried since it was allowed to begin again by itself.
	tried []string
	// takenBack says that the choice of where the last attempt was made was taken
	// back for it.
	takenBack bool
	// uncertain says that an attempt, maybe that of an earlier process, may have
	// left something behind.
	uncertain bool
	// dropped says that nobody wants to know of it any more, once it has ended.
	dropped bool
}

// progress is how far an operation is.
type progress int

const (
	opRunning progress = iota
	opFailed
	opDone
	// opRefused says that it was not begun at all.
	opRefused
)

func newOperations(again func(volume.ObjectRef), watch func(volume.ObjectRef, func(volume.ObjectRef)) func(), activity *work.Activity) *operations {
	return &operations{again: again, watch: watch, activity: activity, slots: make(map[string]chan struct{}), slow: func(task) {}, all: make(map[string]*operation), at: make(map[string]*operation)}
}

// do says how far an operation is, after beginning it if it is not running,
// waiting or done. One that waits for another on the same volume counts as
// running. The error is why it failed, or says that it is slow.
func (o *operations) do(t task) (progress, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	op, other := o.all[t.key], o.at[t.volume]
	switch {
	case op != nil && op.done:
		return opDone, nil
	case op != nil && op.running:
		return opRunning, op.slow
	case op != nil && op.waiting != nil:
		return opFailed, op.err
	case other != nil:
		other.next = append(other.next, t.about)
		return opRunning, nil
	case op == nil:
		op = &operation{key: t.key, about: t.about, uncertain: t.inherited}
		o.all[t.key] = op
	}
	op.running, op.dropped, op.takenBack = true, false, false
	op.tried = append(op.tried, t.on)
	o.at[t.volume] = op
	o.activity.Add(1)
	o.running.Go(func() { o.finish(op, t.volume, o.attempt(op, t)) })
	return opRunning, nil
}

// attempt does a task when there is a slot for it. One that hangs leaves its slot
// to others: calls that are never answered hold up nobody for good.
func (o *operations) attempt(op *operation, t task) error {
	slots := o.slotsOf(t.class)
	select {
	case slots <- struct{}{}:
	case <-o.ctx.Done():
		return volume.NothingDone(context.Cause(o.ctx))
	}
	leave := sync.OnceFunc(func() { <-slots })
	defer leave()
	defer time.AfterFunc(operationPatience, func() {
		leave()
		o.tellSlow(op, t)
	}).Stop()
	return t.do(o.ctx)
}

func (o *operations) slotsOf(class string) chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.slots[class] == nil {
		o.slots[class] = make(chan struct{}, maxOperations)
	}
	return o.slots[class]
}

func (o *operations) tellSlow(op *operation, t task) {
	o.mu.Lock()
	running := op.running
	if running {
		op.slow = fmt.Errorf("the plugin has not answered for %v; it is waited for, and nothing else waits for it", operationPatience)
	}
	o.mu.Unlock()
	if running {
		o.slow(t)
		o.again(t.about)
	}
}

func (o *operations) finish(op *operation, volumeName string, err error) {
	for _, next := range o.settle(op, volumeName, err) {
		o.again(next)
	}
	o.again(op.about)
	o.activity.Add(-1)
}

// settle notes how an operation has ended, and returns what waits for that.
func (o *operations) settle(op *operation, volumeName string, err error) (next []volume.ObjectRef) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.at, volumeName)
	next, op.next = op.next, nil
	op.running, op.slow, op.err, op.done = false, nil, err, err == nil
	if op.dropped {
		delete(o.all, op.key)
	}
	if op.dropped || err == nil || o.ctx.Err() != nil {
		return next
	}
	op.failures++
	op.uncertain = op.uncertain || volume.IsUncertain(err)
	op.waiting = time.AfterFunc(operationPauseAfter(op.failures, err), func() { o.wake(op) })
	// Who uses the data says when it makes sense to try again.
	if inUse, ok := errors.AsType[*release.InUseError](err); ok {
		for _, use := range inUse.Uses {
			op.stops = append(op.stops, o.watch(use.By, func(volume.ObjectRef) { go o.wake(op) }))
		}
	}
	return next
}

// operationPauseAfter is how long to wait after so many failures in a row. What was
// refused for what it says is refused again until that changes, which ends the
// pause.
func operationPauseAfter(failures int, err error) time.Duration {
	if _, refused := errors.AsType[*volume.InvalidSpecError](err); refused && !volume.IsUncertain(err) {
		return work.LastPause
	}
	return work.Pause(operationPause, failures, err)
}

// wake ends the pause of an operation.
func (o *operations) wake(op *operation) {
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
	o.again(op.about)
}

// hurry ends the pause of the operation of a key, if it waits.
func (o *operations) hurry(key string) {
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

// move ends the pause of an operation that has left nothing behind if it is to be
// done where it was not tried yet.
func (o *operations) move(key, to string) {
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

// mayMove reports whether move would end the pause of an operation.
func (o *operations) mayMove(key, to string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all[key].mayMove(to)
}

func (op *operation) mayMove(to string) bool {
	return op != nil && op.waiting != nil && !op.uncertain && to != "" && !slices.Contains(op.tried, to)
}

// state says how far an operation is, without beginning it; may says that it would
// be begun.
func (o *operations) state(key string) (state progress, may bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch op := o.all[key]; {
	case op != nil && op.done:
		return opDone, false, nil
	case op != nil && op.running:
		return opRunning, false, op.slow
	case op != nil && op.waiting != nil:
		return opFailed, false, op.err
	}
	return opFailed, true, nil
}

// giveUp says that an operation which failed has left nothing behind, as somebody
// knows.
func (o *operations) giveUp(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.all[key]; op != nil && !op.running {
		op.uncertain = false
	}
}

// takeBack notes that the choice of where the last attempt was made was taken
// back, which is done but once for each; isTakenBack reports that.
func (o *operations) takeBack(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.all[key]; op != nil && !op.running {
		op.takenBack = true
	}
}

func (o *operations) isTakenBack(key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := o.all[key]
	return op != nil && op.takenBack
}

// failure returns why an operation failed that waits for its next try; nil if
// there is none.
func (o *operations) failure(key string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.all[key]; op != nil && !op.running && !op.done {
		return op.err
	}
	return nil
}

// lastFailure returns why an operation failed, also while it is tried again.
func (o *operations) lastFailure(key string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.all[key]; op != nil && !op.done {
		return op.err
	}
	return nil
}

// certain reports whether an operation that failed, or was never begun, has
// left nothing behind.
func (o *operations) certain(key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	op := o.all[key]
	return op != nil && !op.running && !op.done && !op.uncertain
}

// forget drops an operation, one that runs as soon as it has ended.
func (o *operations) forget(key string) {
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

// wait returns when nothing runs any more, after the context ended.
func (o *operations) wait() {
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
