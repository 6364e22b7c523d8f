package keylock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/util/keylock"
)

func TestLockExcludesSameKeyOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var locks keylock.Map[string]
		unlock, err := locks.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		unlockB, err := locks.Lock(t.Context(), "b")
		if err != nil {
			t.Fatalf("another key waits for this one: %v", err)
		}
		unlockB()

		acquired := make(chan struct{})
		go func() {
			again, err := locks.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			close(acquired)
			again()
		}()
		synctest.Wait()
		select {
		case <-acquired:
			t.Fatal("two holders of one key")
		default:
		}
		unlock()
		unlock() // the second release must not free the next holder's lock
		<-acquired
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel() // takes a free lock and waits for no other
		last, err := locks.Lock(ended, "a")
		if err != nil {
			t.Fatalf("the lock is still held after its last release: %v", err)
		}
		last()
	})
}

func TestLockGivesUpWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var locks keylock.Map[int]
		unlock, err := locks.Lock(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		defer unlock()
		why := errors.New("the pod is gone")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, why)
		defer cancel()
		if _, err := locks.Lock(ctx, 1); !errors.Is(err, why) {
			t.Fatalf("err = %v, want the context's cause", err)
		}
	})
}

func TestFreeLockIsTakenByEndedContext(t *testing.T) {
	var locks keylock.Map[int]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	unlock, err := locks.Lock(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestTryLockNeverWaits(t *testing.T) {
	var locks keylock.Map[string]
	unlock, ok := locks.TryLock("a")
	if !ok {
		t.Fatal("a free lock is not taken")
	}
	if _, ok := locks.TryLock("a"); ok {
		t.Error("two holders of one key")
	}
	if other, ok := locks.TryLock("b"); !ok {
		t.Error("another key is held")
	} else {
		other()
	}
	unlock()
	unlock, ok = locks.TryLock("a")
	if !ok {
		t.Fatal("it was not released")
	}
	unlock()
}

func TestWaitersTakeTurnsAndTheOneThatLeavesIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var locks keylock.Map[string]
		unlock, _ := locks.TryLock("a")
		leaving, leave := context.WithCancel(t.Context())
		got := make(chan int, 3)
		for i, ctx := range []context.Context{t.Context(), leaving, t.Context()} {
			go func() {
				unlock, err := locks.Lock(ctx, "a")
				if err != nil {
					return
				}
				got <- i
				unlock()
			}()
			synctest.Wait() // they wait in this order
		}
		leave()
		synctest.Wait()
		unlock()
		synctest.Wait()
		if first, second := <-got, <-got; first != 0 || second != 2 {
			t.Errorf("the lock went to %d, then to %d", first, second)
		}
		if _, ok := locks.TryLock("a"); !ok {
			t.Error("it was not released")
		}
	})
}

func TestALockThatComesAsItsWaiterLeavesIsNotLost(t *testing.T) {
	for range 20 { // either is seen first
		synctest.Test(t, func(t *testing.T) {
			var locks keylock.Map[string]
			unlock, _ := locks.TryLock("a")
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() {
				again, err := locks.Lock(ctx, "a")
				if err == nil {
					again()
				}
				ended <- err
			}()
			synctest.Wait()
			unlock()
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("the lock was given to a waiter that says %v", err)
			}
			if _, ok := locks.TryLock("a"); !ok {
				t.Error("it was not released")
			}
		})
	}
}
