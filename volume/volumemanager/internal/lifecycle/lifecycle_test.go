package lifecycle_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/volume/volumemanager/internal/lifecycle"
)

func TestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, began := lifecycle.New(), time.Now()
		if err := l.WaitForRun(t.Context()); !errors.Is(err, lifecycle.ErrNotRun) || time.Since(began) != 30*time.Second {
			t.Errorf("without Run: %v after %v", err, time.Since(began))
		}
		ended, cancel := context.WithCancelCause(t.Context())
		why := errors.New("patience")
		cancel(why)
		if err := l.WaitForRecovery(ended); !errors.Is(err, lifecycle.ErrNotRun) || !errors.Is(err, why) {
			t.Errorf("without Run, and without patience: %v", err)
		}
		if !l.Begin() || l.Begin() {
			t.Error("Run must begin once, and only once")
		}
		if err := l.WaitForRun(ended); err != why {
			t.Errorf("before the recovery, without patience: %v", err)
		}
		waited := make(chan error, 1)
		go func() { waited <- l.WaitForRun(t.Context()) }()
		synctest.Wait()
		if l.HasRecovered() {
			t.Error("nothing was recovered")
		}
		l.Recovered()
		if err := <-waited; err != nil || !l.HasRecovered() {
			t.Errorf("after the recovery: %v", err)
		}
		if !l.Stop() || l.Stop() || !l.IsStopped() {
			t.Error("it must stop once, and only once")
		}
		if err := l.WaitForRun(t.Context()); err != lifecycle.ErrStopped {
			t.Errorf("after the end: %v", err)
		}
	})
}

// Whatever keeps the root is waited for, and after the end nothing new keeps it.
func TestKeepRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lifecycle.New()
		done, err := l.KeepRoot()
		if err != nil {
			t.Fatal(err)
		}
		l.Stop()
		if _, err := l.KeepRoot(); err != lifecycle.ErrStopped {
			t.Errorf("after the end: %v", err)
		}
		free := make(chan struct{})
		go func() { l.Wait(); close(free) }()
		synctest.Wait()
		select {
		case <-free:
			t.Error("the root is free while it is kept")
		default:
		}
		done()
		<-free
	})
}

// What is begun beside the wait, or after it, is done nevertheless.
func TestGoBesideWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := lifecycle.New()
		done := make(chan struct{}, 100)
		go func() {
			for range cap(done) {
				l.Go(func() { done <- struct{}{} })
			}
		}()
		l.Stop()
		l.Wait()
		synctest.Wait()
		if len(done) != cap(done) {
			t.Errorf("%d of %d were done", len(done), cap(done))
		}
	})
}
