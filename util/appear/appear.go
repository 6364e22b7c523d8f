// Package appear reports missing paths that appear, as soon as the kernel reports the change.
//
// It does not report a path that cannot be watched: one path too many, or a path on a file
// system that another machine changes. So its user also looks from time to time.
package appear

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/retry"
)

const (
	// maxPaths bounds the paths that are awaited at a time.
	maxPaths = 64
	// patience is how long a path is awaited after the last Await of it. It is longer than
	// the longest pause of a reconciler.
	patience = 5 * time.Minute
	// A path that comes and goes is reported after pauses that grow.
	firstPause = 100 * time.Millisecond
	lastPause  = time.Minute
	// maxSteps bounds the new watches on a way whose directories are being made.
	maxSteps = 100
)

// Watch awaits paths. Its zero value is ready; it must not be copied. All methods are safe for
// concurrent use.
type Watch struct {
	mu  sync.Mutex
	run *run // the last Run's; nil: it has ended, or there was none
}

// run is the state of one Run.
type run struct {
	ctx   context.Context
	found func(path string)
	calls blockingcall.Group[string]

	mu      sync.Mutex
	ended   bool
	paths   map[string]*awaited // by name
	kernel  *kernel             // nil: nothing is watched
	running sync.WaitGroup
}

// awaited is one path. name is its spelling by the caller.
type awaited struct {
	name    string
	path    string
	until   time.Time
	changed chan struct{} // holds a value after a change on the way to the path
	again   chan struct{} // holds a value after an Await
}

// Run calls found with each awaited path that has appeared, until ctx ends. It does not report
// paths that were awaited before it began. mounts holds a value after each change of the mount
// table, which may make a path appear; nil: the mount table does not change.
func (w *Watch) Run(ctx context.Context, mounts <-chan struct{}, found func(path string)) {
	ctx, cancel := context.WithCancel(ctx)
	r := &run{ctx: ctx, found: found, paths: make(map[string]*awaited)}
	w.mu.Lock()
	w.run = r
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		if w.run == r {
			w.run = nil
		}
		w.mu.Unlock()
		r.end(cancel)
	}()
	for {
		select {
		case _, ok := <-mounts:
			if !ok {
				mounts = nil
			}
			r.notifyAll()
		case <-ctx.Done():
			return
		}
	}
}

// Await has Run report an absolute path, as it is spelled here, once it exists; it may exist
// already. Without a Run it does nothing. It does not block. Links on the way are followed, but
// the target of a broken link is not watched.
func (w *Watch) Await(name string) {
	w.mu.Lock()
	r := w.run
	w.mu.Unlock()
	if r != nil {
		r.await(name)
	}
}

// end lets no new follow begin, and waits for those that run.
func (r *run) end(cancel func()) {
	r.mu.Lock()
	r.ended = true
	kernel := r.kernel
	r.mu.Unlock()
	cancel()
	r.running.Wait()
	if kernel != nil {
		kernel.close()
	}
}

func (r *run) await(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	if a := r.paths[name]; a != nil {
		a.until = time.Now().Add(patience)
		notify(a.again)
		return
	}
	if len(r.paths) >= maxPaths {
		return
	}
	if r.kernel == nil {
		kernel, err := newKernel(r.notify, r.notifyAll)
		if err != nil {
			return // too many instances are in use; a later Await may get one
		}
		r.kernel = kernel
	}
	a := &awaited{name: name, path: filepath.Clean(name), until: time.Now().Add(patience), changed: make(chan struct{}, 1), again: make(chan struct{}, 1)}
	r.paths[name] = a
	kernel := r.kernel
	r.running.Go(func() { r.follow(kernel, a) })
}

// follow reports one path each time that it appears, until it is not awaited any more.
func (r *run) follow(kernel *kernel, a *awaited) {
	defer r.forget(kernel, a)
	pause := retry.Pause{First: firstPause, Last: lastPause}
	for {
		if r.isThere(kernel, a) {
			if !pause.Wait(r.ctx) {
				return
			}
			r.found(a.name)
			if !r.wait(a, a.again) { // the user awaits it again if it was not as needed
				return
			}
		} else if !r.wait(a, a.changed) {
			return
		}
	}
}

// wait returns true with a value of the channel, and false once the path is not awaited.
func (r *run) wait(a *awaited, event <-chan struct{}) bool {
	for {
		left := r.left(a)
		if left <= 0 {
			return false
		}
		timer := time.NewTimer(left)
		select {
		case <-event:
			timer.Stop()
			return true
		case <-timer.C: // an Await may have moved the end
		case <-r.ctx.Done():
			timer.Stop()
			return false
		}
	}
}

func (r *run) left(a *awaited) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Until(a.until)
}

// isThere watches the way to a path as far as there is one, and reports whether the path
// exists, after that. A file system that does not answer is given up with ctx.
func (r *run) isThere(kernel *kernel, a *awaited) (there bool) {
	err := r.calls.Do(r.ctx, a.name, func() error {
		for range maxSteps {
			if !watchNearest(kernel, a.name, a.path) {
				break
			}
		}
		_, err := os.Stat(a.path)
		return err
	})
	return r.ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist)
}

// watchNearest watches the nearest directory that exists, and reports whether a nearer one has
// been made meanwhile.
func watchNearest(kernel *kernel, name, path string) (nearer bool) {
	for at := path; filepath.Dir(at) != at; at = filepath.Dir(at) {
		if !kernel.watch(name, filepath.Dir(at), filepath.Base(at)) {
			continue
		}
		info, err := os.Stat(at)
		return at != path && err == nil && info.IsDir()
	}
	return false
}

func (r *run) forget(kernel *kernel, a *awaited) {
	kernel.forget(a.name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.paths, a.name)
}

func (r *run) notify(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.paths[name]; a != nil {
		notify(a.changed)
	}
}

func (r *run) notifyAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.paths {
		notify(a.changed)
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
