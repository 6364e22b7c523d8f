package kubeletapi

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/inotify"
)

// printed is a log that is sent to a caller.
type printed struct {
	file    *os.File
	open    func() (*os.File, error) // what has the log's name now
	ended   func() bool              // the container has
	writes  *writeWatcher
	grown   <-chan struct{} // nil: the file is not watched
	unwatch func()
	after   *os.File // has taken the file's place, whose end may not be read yet; nil: none has
}

// Read reads the file, and goes on in the next one after more.
func (l *printed) Read(p []byte) (int, error) { return l.file.Read(p) }

// close closes the files.
func (l *printed) close() {
	l.leave()
	l.after.Close() // nil may be closed
}

func (l *printed) leave() {
	if l.grown != nil {
		l.unwatch()
		l.grown = nil
	}
	l.file.Close()
}

// more returns nil when there may be more to read, and io.EOF when the container has ended
// and all was read. It is called at the end of the file.
func (l *printed) more(ctx context.Context) (err error) {
	if l.after != nil {
		l.leave()
		l.file, l.after = l.after, nil
		return nil
	}
	if l.after, err = l.next(); err != nil || l.after != nil {
		return err // or there is what was written to the old one meanwhile
	}
	if l.grown == nil {
		if l.grown, l.unwatch, err = l.writes.watch(l.file); err != nil {
			return err
		}
	}
	return l.awaitMore(ctx)
}

// awaitMore waits for more. The kernel tells of writes; whether the container has ended is
// looked at every second.
func (l *printed) awaitMore(ctx context.Context) error {
	over := l.ended() // before the size: what is written later was written after its end
	at, err := l.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if info, err := l.file.Stat(); err != nil || info.Size() > at {
		return err
	}
	if over {
		return io.EOF
	}
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-l.grown:
	case <-timer.C:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

// writeWatcher reports writes to all followers of logs. They share one instance of inotify, since a
// user may have few. It exists while there is a follower.
type writeWatcher struct {
	mu      sync.Mutex
	events  *inotify.Instance // nil: nobody follows
	waiting map[int32]map[chan struct{}]bool
}

// watch returns a channel that has a value after each write to a file, until stop is called.
func (g *writeWatcher) watch(file *os.File) (grown <-chan struct{}, stop func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.events == nil {
		if g.events, err = inotify.New(); err != nil {
			return nil, nil, err
		}
		g.waiting = make(map[int32]map[chan struct{}]bool)
		go g.deliver(g.events)
	}
	id, err := g.events.Add(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), unix.IN_MODIFY) // whatever has its name by now
	if err != nil {
		g.endUnused()
		return nil, nil, err
	}
	if g.waiting[id] == nil {
		g.waiting[id] = make(map[chan struct{}]bool)
	}
	one := make(chan struct{}, 1)
	g.waiting[id][one] = true
	return one, sync.OnceFunc(func() { g.leave(id, one) }), nil
}

func (g *writeWatcher) leave(id int32, one chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.waiting[id], one)
	if len(g.waiting[id]) == 0 {
		delete(g.waiting, id)
		g.events.Remove(id)
	}
	g.endUnused()
}

// endUnused ends the watch and the instance once they have no followers. mu is held.
func (g *writeWatcher) endUnused() {
	if len(g.waiting) == 0 {
		_ = g.events.Close()
		g.events = nil
	}
}

// deliver passes the events of an instance on until that is closed.
func (g *writeWatcher) deliver(of *inotify.Instance) {
	for {
		events, err := of.Read()
		if err != nil {
			return
		}
		g.mu.Lock()
		if g.events == of {
			for _, e := range events {
				g.wake(e)
			}
		}
		g.mu.Unlock()
	}
}

// wake wakes the followers that an event is for, or all if events were lost. mu is held.
func (g *writeWatcher) wake(e inotify.Event) {
	for id, all := range g.waiting {
		for one := range all {
			if id == e.Watch || e.Lost() {
				select {
				case one <- struct{}{}:
				default: // it will look anyway
				}
			}
		}
	}
}
