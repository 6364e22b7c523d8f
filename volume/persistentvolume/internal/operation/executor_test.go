package operation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
)

func TestMain(m *testing.M) { noleak.Main(m) }

// bench is an executor in virtual time, and the objects that it has had looked at.
type bench struct {
	*Executor
	activity work.Activity
	table    *reservation.Table

	mu          sync.Mutex
	again, slow []string
}

// told returns the objects that were looked at, and the operations that are slow, in order.
func (b *bench) told() (again, slow []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(slices.Values(b.again)), slices.Clone(b.slow)
}

func (b *bench) note(in *[]string, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*in = append(*in, name)
}

// Add, Remind and Hear note what is to be looked at.
func (b *bench) Enqueue(ref volume.ObjectRef)           { b.note(&b.again, ref.Name) }
func (b *bench) EnqueueAfterPause(ref volume.ObjectRef) { b.Enqueue(ref) }
func (b *bench) EnqueueIfChanged(ref volume.ObjectRef)  { b.Enqueue(ref) }

func run(t *testing.T, f func(t *testing.T, b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{}
		b.table = reservation.New(reservation.Config{Index: index.New(), Waiting: index.NewWaiting(), Queue: b})
		b.Executor = NewExecutor(Config{
			Again: b.Enqueue,
			Reserve: func(t Task) (func(), bool) {
				e, ok := b.table.ReserveStorage(t.Volume, t.Removes, t.About)
				return e.Forget, ok
			},
			Watch:    func(volume.ObjectRef, func(volume.ObjectRef)) func() { return func() {} },
			Slow:     func(task Task) { b.note(&b.slow, task.Key) },
			Activity: &b.activity,
		})
		ctx, cancel := context.WithCancel(t.Context())
		b.Start(ctx)
		f(t, b)
		cancel()
		b.Wait()
	})
}

// slowBeside returns the status of an operation, and which ones are slow.
func (b *bench) slowBeside(key string) (Status, []string) {
	_, slow := b.told()
	return b.Status(key), slow
}

// task is one that takes a time and ends with an error.
func task(key, volumeName string, takes time.Duration, err error) Task {
	return Task{Key: key, Volume: volumeName, About: volume.NewObjectRef("PersistentVolume", "", key), Do: func(context.Context) error {
		time.Sleep(takes)
		return err
	}}
}

func (b *bench) isIdle() bool {
	select {
	case <-b.activity.Idle():
		return true
	default:
		return false
	}
}

// What is done is not done again before it is forgotten, and its object is looked at once
// it is.
func TestDoneOnce(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		made := task("a", "pv", time.Second, nil)
		for _, want := range []State{Running, Running, Done, Done} {
			if state, err := b.Do(made); state != want || err != nil {
				t.Errorf("%v after %v, %v", state, want, err)
			}
			time.Sleep(600 * time.Millisecond)
		}
		synctest.Wait()
		if again, _ := b.told(); !slices.Equal(again, []string{"a"}) || !b.isIdle() {
			t.Errorf("looked at %v", again)
		}
		b.Forget("a")
		if state, _ := b.Do(made); state != Running {
			t.Errorf("%v once it was forgotten", state)
		}
	})
}

// One works on a volume at a time; the object of the other is looked at when it may begin.
func TestOneForAVolume(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		b.Do(task("a", "pv", time.Second, nil))
		if state, _ := b.Do(task("b", "pv", time.Second, nil)); state != Running {
			t.Errorf("%v while another works on the volume", state)
		}
		if !b.Status("b").MayBegin {
			t.Error("it has begun")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if again, _ := b.told(); !slices.Equal(again, []string{"a", "b"}) {
			t.Errorf("looked at %v", again)
		}
	})
}

// Data that a claim takes is not removed: the task begins once the claim has given it back.
func TestNothingIsRemovedThatAClaimTakes(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		b.table.Index.Put(pvbuild.NewPV("pv", "1Gi"))
		assumed, err := b.table.Reserve(index.Wanted{Claim: pvbuild.NewClaim("c", "1Gi")})
		if err != nil {
			t.Fatal(err)
		}
		remove := task("a", "pv", time.Second, nil)
		remove.Removes = true
		if state, _ := b.Do(remove); state != Running || !b.Status("a").MayBegin || !b.isIdle() {
			t.Errorf("%v while a claim takes the volume: %+v", state, b.Status("a"))
		}
		assumed.Forget()
		if again, _ := b.told(); !slices.Contains(again, "a") {
			t.Errorf("looked at %v", again)
		}
		b.Do(remove)
		if b.Status("a").State != Running || b.isIdle() {
			t.Errorf("once it was given back: %+v", b.Status("a"))
		}
		if _, err := b.table.Reserve(index.Wanted{Claim: pvbuild.NewClaim("c", "1Gi")}); err == nil {
			t.Error("a claim takes a volume whose data is being removed")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if _, err := b.table.Reserve(index.Wanted{Claim: pvbuild.NewClaim("c", "1Gi")}); err != nil {
			t.Error(err)
		}
	})
}

// A failure is kept for a pause that grows, what was left behind as long as nobody says
// otherwise.
func TestFailuresAreTriedAgain(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		broken := errors.New("broken")
		for _, pause := range []time.Duration{work.OperationPause, 2 * work.OperationPause, 4 * work.OperationPause} {
			b.Do(task("a", "pv", 0, broken))
			synctest.Wait()
			now := b.Status("a")
			if now.State != Failed || now.MayBegin || now.Certain || !errors.Is(now.Err, broken) {
				t.Errorf("status %+v", now)
			}
			time.Sleep(pause - time.Nanosecond)
			if b.Status("a").MayBegin {
				t.Errorf("it may begin before %v", pause)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if now := b.Status("a"); !now.MayBegin || !errors.Is(now.Failure, broken) {
				t.Errorf("after %v: %+v", pause, now)
			}
		}
		b.GiveUp("a")
		if !b.Status("a").Certain {
			t.Error("it is not known that nothing was left")
		}
	})
}

// Operations that hang are told of, once each, and hold up no others of their class.
func TestSlowOnesLeaveTheirPlaces(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		const hang = time.Hour
		for i := range maxOperations {
			name := string(rune('a' + i))
			b.Do(task(name, name, hang, nil))
		}
		synctest.Wait() // all have their places
		b.Do(task("next", "next", 0, nil))
		time.Sleep(Patience - time.Nanosecond)
		synctest.Wait()
		if now, slow := b.slowBeside("next"); now.State != Running || len(slow) > 0 {
			t.Errorf("before: %+v, slow %v", now, slow)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if now, slow := b.slowBeside("next"); now.State != Done || len(slow) != maxOperations {
			t.Errorf("after: %+v, slow %v", now, slow)
		}
		if now := b.Status("a"); now.State != Running || now.Err == nil {
			t.Errorf("one that hangs: %+v", now)
		}
		time.Sleep(hang)
	})
}

// An operation that runs is dropped when it has ended.
func TestForgottenWhileItRuns(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		b.Do(task("a", "pv", time.Second, nil))
		b.Forget("a")
		if b.Status("a").State != Running {
			t.Error("it does not run any more")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !b.Status("a").MayBegin {
			t.Error("it was not forgotten")
		}
	})
}

// spans is a tracer that writes down spans as they end.
type spans []string

func (s *spans) Start(ctx context.Context, name string, attributes ...slog.Attr) (context.Context, func(error)) {
	return ctx, func(err error) { *s = append(*s, fmt.Sprint(name, attributes, err)) }
}

func TestAttemptIsASpan(t *testing.T) {
	run(t, func(t *testing.T, b *bench) {
		traced := new(spans)
		b.Tracer = traced
		ref := volume.NewObjectRef("PersistentVolumeClaim", "shop", "disk")
		_, _ = b.Do(Task{Key: "provision uid-1", Volume: "pvc-1", Class: "fast", About: ref, Do: func(context.Context) error { return errors.New("no room") }})
		synctest.Wait()
		want := []string{"provision[podvol.object=" + ref.String() + " podvol.persistentvolume=pvc-1 podvol.storageclass=fast] no room"}
		if !slices.Equal(*traced, want) {
			t.Errorf("spans %q, want %q", *traced, want)
		}
		b.Forget("provision uid-1")
	})
}
