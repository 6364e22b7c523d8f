// Package keylock locks by key, and lets a waiter give up.
//
// A [Map] is a set of mutexes that come and go with their keys. A waiter waits for a
// channel of its own, so that it can leave when its context ends and so that a lock
// held across a blocking call does not stall virtual time ([testing/synctest]).
//
// Like every package below util, it carries no promise of compatibility.
package keylock

import (
	"context"
	"slices"
	"sync"
)

// Map holds one lock for each key in use. Its zero value is ready. A Map must
// not be copied after first use; all methods are safe for concurrent use.
type Map[K comparable] struct {
	mu   sync.Mutex
	held map[K]*lock
}

// lock is one that is held. It is guarded by Map.mu.
type lock struct {
	turn    int             // counts its holders, the present one included
	waiting []chan struct{} // of those that are next, first come first served
}

// Lock waits until it holds the lock of key or ctx ends, and returns the
// function that releases it. Releasing twice is allowed and does nothing the
// second time. The error is the cause of ctx's end ([context.Cause]); in that
// case nothing is held. A free lock is taken even when ctx has already ended.
func (m *Map[K]) Lock(ctx context.Context, key K) (unlock func(), err error) {
	unlock, l, next := m.enter(key)
	if unlock != nil {
		return unlock, nil
	}
	select {
	case <-next:
	case <-ctx.Done():
		if m.leave(l, next) {
			return nil, context.Cause(ctx)
		}
	}
	return m.release(key, l), nil
}

// TryLock takes the lock of key if it is free, and reports whether it did. It
// never waits. Unlock is as for [Map.Lock].
func (m *Map[K]) TryLock(key K) (unlock func(), ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held[key] != nil {
		return nil, false
	}
	return m.take(key), true
}

// enter takes the lock if it is free. Else next is closed once the lock is the caller's.
func (m *Map[K]) enter(key K) (unlock func(), l *lock, next chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l = m.held[key]; l == nil {
		return m.take(key), nil, nil
	}
	next = make(chan struct{})
	l.waiting = append(l.waiting, next)
	return nil, l, next
}

// take takes a free lock. The caller holds m.mu.
func (m *Map[K]) take(key K) (unlock func()) {
	if m.held == nil {
		m.held = make(map[K]*lock)
	}
	l := new(lock)
	m.held[key] = l
	return m.unlocker(key, l, l.turn)
}

// leave ends a wait, unless it is over: then the lock is held.
func (m *Map[K]) leave(l *lock, next chan struct{}) (left bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := slices.Index(l.waiting, next)
	if at < 0 {
		return false
	}
	l.waiting = slices.Delete(l.waiting, at, at+1)
	return true
}

// release returns the function that releases a lock that was waited for.
func (m *Map[K]) release(key K, l *lock) (unlock func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unlocker(key, l, l.turn)
}

func (m *Map[K]) unlocker(key K, l *lock, turn int) (unlock func()) {
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if l.turn != turn {
			return // released before
		}
		l.turn++
		if len(l.waiting) == 0 {
			delete(m.held, key)
			return
		}
		close(l.waiting[0])
		l.waiting = slices.Delete(l.waiting, 0, 1)
	}
}
