// Package keylock locks by key, and lets a waiter give up.
//
// A [Map] is a set of mutexes that come and go with their keys. The locks are
// made of channels, so that a waiter can leave when its context ends and so
// that a lock held across a blocking call does not stall virtual time
// ([testing/synctest]).
//
// Like every package below util, it carries no promise of compatibility.
package keylock

import (
	"context"
	"sync"
	"sync/atomic"
)

// Map holds one lock for each key in use. Its zero value is ready. A Map must
// not be copied after first use; all methods are safe for concurrent use.
type Map[K comparable] struct {
	mu    sync.Mutex
	locks map[K]*lock
}

type lock struct {
	held  chan struct{} // holds one value while locked
	users int           // holders and waiters, guarded by Map.mu
}

// Lock waits until it holds the lock of key or ctx ends, and returns the
// function that releases it. Releasing twice is allowed and does nothing the
// second time. The error is the cause of ctx's end ([context.Cause]); in that
// case nothing is held. A free lock is taken even when ctx has already ended.
func (m *Map[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	l := m.enter(key)
	select {
	case l.held <- struct{}{}:
		return m.release(key, l), nil
	default:
	}
	select {
	case l.held <- struct{}{}:
		return m.release(key, l), nil
	case <-ctx.Done():
		m.leave(key, l)
		return nil, context.Cause(ctx)
	}
}

// TryLock takes the lock of key if it is free, and reports whether it did. It
// never waits. Unlock is as for [Map.Lock].
func (m *Map[K]) TryLock(key K) (unlock func(), ok bool) {
	l := m.enter(key)
	select {
	case l.held <- struct{}{}:
		return m.release(key, l), true
	default:
		m.leave(key, l)
		return nil, false
	}
}

func (m *Map[K]) enter(key K) *lock {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locks == nil {
		m.locks = make(map[K]*lock)
	}
	l, ok := m.locks[key]
	if !ok {
		l = &lock{held: make(chan struct{}, 1)}
		m.locks[key] = l
	}
	l.users++
	return l
}

func (m *Map[K]) leave(key K, l *lock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.users--
	if l.users == 0 {
		delete(m.locks, key)
	}
}

func (m *Map[K]) release(key K, l *lock) func() {
	var released atomic.Bool
	return func() {
		if released.Swap(true) {
			return
		}
		<-l.held
		m.leave(key, l)
	}
}
