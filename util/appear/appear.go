// Package appear tells when missing paths appear, as soon as the kernel tells of it.
//
// It says no more than that: its user looks again, and looks now and then by itself, since a
// path that cannot be watched is not told of. Such are one path too many, and one on a file
// system of another machine that makes it.
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
	// most is how many paths are awaited at a time.
	most = 64
	// patience is how long a path is awaited after the last Await of it. It is longer than
	// the longest pause of a reconciler.
	patience = 5 * time.Minute
	// A path that comes and goes is told of after pauses that grow.
	firstPause = 100 * time.Millisecond
	lastPause  = time.Minute
	// maxSteps bounds how often a way is watched anew that is made just now.
	maxSteps = 100
)

// Watch awaits paths. Its zero value is ready; it must not be copied. All methods are safe for
// concurrent use.
type Watch struct {
	mu  sync.Mutex
	run *run // the last Run's; nil: it has ended, or there was none
}

// run is what one Run awaits.
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

// awaited is one path, under the name that it was given by.
type awaited struct {
	name  string
	path  string
	until time.Time
	poked chan struct{} // holds a value after a change on the way to the path
	again chan struct{} // holds a value after an Await
}

// Run tells found of paths that have appeared, until ctx ends. What is awaited while it does
// not run is not told of, and to a later Run what an earlier one has not told of. Mounts holds
// a value after each change of the mount table, under which a path may appear; nil: there are
// no such changes.
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
			r.pokeAll()
		case <-ctx.Done():
			return
		}
	}
}

// Await has an absolute path told of, as it is spelled here, once it appears, also where it has
// by now. It does not block. Links on the way are followed, but one that leads nowhere is not
// watched.
func (w *Watch) Await(name string) {
	w.mu.Lock()
	r := w.run
	w.mu.Unlock()
	if r != nil {
		r.await(name)
	}
}

// end lets nothing new begin, and waits for what has begun.
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
		poke(a.again)
		return
	}
	if len(r.paths) >= most {
		return
	}
	if r.kernel == nil {
		kernel, err := newKernel(r.poke, r.pokeAll)
		if err != nil {
			return // too many are in use; a later one may be had
		}
		r.kernel = kernel
	}
	a := &awaited{name: name, path: filepath.Clean(name), until: time.Now().Add(patience), poked: make(chan struct{}, 1), again: make(chan struct{}, 1)}
	r.paths[name] = a
	kernel := r.kernel
	r.running.Go(func() { r.follow(kernel, a) })
}

// follow tells of one path each time that it appears, until it is not awaited any more.
func (r *run) follow(kernel *kernel, a *awaited) {
	defer r.forget(kernel, a)
	pause := retry.Pause{First: firstPause, Last: lastPause}
	for {
		if r.isThere(kernel, a) {
			if !pause.Wait(r.ctx) {
				return
			}
			r.found(a.name)
			if !r.wait(a, a.again) { // it is awaited again where it was not what was wanted
				return
			}
		} else if !r.wait(a, a.poked) {
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
		case <-timer.C: // or it was put off
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
			if !watchWay(kernel, a.name, a.path) {
				break
			}
		}
		_, err := os.Stat(a.path)
		return err
	})
	return r.ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist)
}

// watchWay watches the nearest directory that exists, and reports whether a nearer one has
// been made meanwhile.
func watchWay(kernel *kernel, name, path string) (nearer bool) {
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

func (r *run) poke(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.paths[name]; a != nil {
		poke(a.poked)
	}
}

func (r *run) pokeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.paths {
		poke(a.poked)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
