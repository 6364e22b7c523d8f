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
	mu      sync.Mutex
	ctx     context.Context // of Run; nil: it does not run
	found   func(path string)
	paths   map[string]*awaited // by name
	kernel  *kernel             // nil: nothing is watched
	running sync.WaitGroup
	calls   blockingcall.Group[string]
}

// awaited is one path, under the name that it was given by.
type awaited struct {
	name  string
	path  string
	until time.Time
	poked chan struct{} // holds a value after a change on the way to the path
	again chan struct{} // holds a value after an Await
}

// Run tells found of paths that have appeared, until ctx ends. It runs once at a time. What
// is awaited while it does not run is not told of. Mounts holds a value after each change of
// the mount table, under which a path may appear; nil: there are no such changes.
func (w *Watch) Run(ctx context.Context, mounts <-chan struct{}, found func(path string)) {
	ctx, cancel := context.WithCancel(ctx)
	w.mu.Lock()
	w.ctx, w.found, w.paths = ctx, found, make(map[string]*awaited)
	w.mu.Unlock()
	defer w.end(cancel)
	for {
		select {
		case _, ok := <-mounts:
			if !ok {
				mounts = nil
			}
			w.pokeAll()
		case <-ctx.Done():
			return
		}
	}
}

// end lets nothing new begin, and waits for what has begun.
func (w *Watch) end(cancel func()) {
	w.mu.Lock()
	w.ctx = nil
	cancel()
	w.mu.Unlock()
	w.running.Wait()
	if w.kernel != nil {
		w.kernel.close()
		w.kernel = nil
	}
}

// Await has an absolute path told of, as it is spelled here, once it appears, also where it has
// by now. It does not block. Links on the way are followed, but one that leads nowhere is not
// watched.
func (w *Watch) Await(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx == nil {
		return
	}
	if a := w.paths[name]; a != nil {
		a.until = time.Now().Add(patience)
		poke(a.again)
		return
	}
	if len(w.paths) >= most {
		return
	}
	if w.kernel == nil {
		kernel, err := newKernel(w.poke, w.pokeAll)
		if err != nil {
			return // too many are in use; a later one may be had
		}
		w.kernel = kernel
	}
	a := &awaited{name: name, path: filepath.Clean(name), until: time.Now().Add(patience), poked: make(chan struct{}, 1), again: make(chan struct{}, 1)}
	w.paths[name] = a
	ctx, kernel := w.ctx, w.kernel
	w.running.Go(func() { w.follow(ctx, kernel, a) })
}

// follow tells of one path each time that it appears, until it is not awaited any more.
func (w *Watch) follow(ctx context.Context, kernel *kernel, a *awaited) {
	defer w.forget(kernel, a)
	pause := retry.Pause{First: firstPause, Last: lastPause}
	for {
		if w.isThere(ctx, kernel, a) {
			if !pause.Wait(ctx) {
				return
			}
			w.found(a.name)
			if !w.wait(ctx, a, a.again) { // it is awaited again where it was not what was wanted
				return
			}
		} else if !w.wait(ctx, a, a.poked) {
			return
		}
	}
}

// wait returns true with a value of the channel, and false once the path is not awaited.
func (w *Watch) wait(ctx context.Context, a *awaited, event <-chan struct{}) bool {
	for {
		left := w.left(a)
		if left <= 0 {
			return false
		}
		timer := time.NewTimer(left)
		select {
		case <-event:
			timer.Stop()
			return true
		case <-timer.C: // or it was put off
		case <-ctx.Done():
			timer.Stop()
			return false
		}
	}
}

func (w *Watch) left(a *awaited) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Until(a.until)
}

// isThere watches the way to a path as far as there is one, and reports whether the path
// exists, after that. A file system that does not answer is given up with ctx.
func (w *Watch) isThere(ctx context.Context, kernel *kernel, a *awaited) (there bool) {
	err := w.calls.Do(ctx, a.name, func() error {
		for range maxSteps {
			if !watchWay(kernel, a.name, a.path) {
				break
			}
		}
		_, err := os.Stat(a.path)
		return err
	})
	return ctx.Err() == nil && !errors.Is(err, fs.ErrNotExist)
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

func (w *Watch) forget(kernel *kernel, a *awaited) {
	kernel.forget(a.name)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.paths, a.name)
}

func (w *Watch) poke(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.paths[name]; a != nil {
		poke(a.poked)
	}
}

func (w *Watch) pokeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.paths {
		poke(a.poked)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
