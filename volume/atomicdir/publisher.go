//go:build linux || darwin || freebsd || netbsd || openbsd

package atomicdir

import (
	"context"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume/fileset"
)

// Publisher publishes sets of files and remembers what it published, so that
// an unchanged set costs next to nothing. Its zero value is ready; it must not
// be copied after first use. Its methods are safe for concurrent use;
// its publications into one directory take turns. Those of several Publishers,
// or processes, fail with [ErrBusy] while another one is under way.
type Publisher struct {
	// Sole: no other Publisher, of this process or another, publishes into the same
	// directories, as where a process owns their root directory. Then no lock is taken,
	// and no reader can keep Publish out by one. It must be set before the first use.
	Sole bool

	mu    sync.Mutex
	known map[string]published // by cleaned path

	busy keylock.Map[fileID]

	// beforeStep, if not nil, is called before each step that changes the disk
	// and can make it fail; tests set it.
	beforeStep func(op, name string) error
}

// published is what was last published into a directory.
type published struct {
	contents
	// changed is when dir was last changed, by the publication or before it
	// was found unchanged.
	changed unix.Timespec
	// names are the files', sorted.
	names []string
}

type contents struct {
	dir     fileID
	current version
	digest  digest
}

// Publish makes files, by their paths ([fileset.CheckPath]), the published contents of
// dir and reports whether that changed anything. What was published before and
// is not in files disappears; everything else in dir is left alone. An empty
// set is allowed.
//
// Dir must exist and be a directory itself, not a link to one; links among its
// parents are followed, links beneath it never. Directories of nested paths
// have mode 0755, and setgid where dir passes it on.
//
// Unchanged means that the same set was published by this Publisher and is
// still in place, all its names visible, or, at the first call for dir, that
// names, contents, modes and owners were found on disk. Then nothing is
// written; times of last access may change as by any reader. A visible name
// that was removed is made again. What a crash left is removed, which is no
// change of the files.
//
// While it runs, Publish holds a lock of flock(2) on dir, unless it is Sole. It does not wait for
// another Publisher's: the error matches [ErrBusy]. Limits of that lock:
//   - On a file system without such locks Publish goes on without it; then one
//     Publisher alone may publish into dir at any time.
//   - A file system of several hosts may keep it within each of them.
//   - The kubelet does not take it.
//   - Any process that may open dir for reading can take it, and so keep Publish
//     out; readers must not.
//
// Publish refuses the set with a *[fileset.PathError], and dir with a
// *[ForeignEntryError], before anything is changed. Any other error is an
// *[Error]. Unless it says otherwise (Error.Published), the previous version
// is still in place as a whole. When ctx ends, Publish stops between two
// steps; from the moment it begins to replace visible names, it finishes.
func (p *Publisher) Publish(ctx context.Context, dir string, files map[string]fileset.File) (changed bool, err error) {
	dir = filepath.Clean(dir)
	t, err := openTarget(dir, p.beforeStep)
	if err != nil {
		return false, &Error{Op: "open", Dir: dir, Err: err}
	}
	defer t.close()
	unlock, err := p.busy.Lock(ctx, t.id)
	if err != nil {
		return false, &Error{Op: "wait for another publication", Dir: dir, Err: err}
	}
	defer unlock()
	release, err := p.lock(t)
	if err != nil {
		return false, err
	}
	defer release()

	current, err := t.currentVersion()
	if err != nil {
		return false, err
	}
	known, ok := p.recall(dir)
	want, names := digestOf(files, known.names)
	inPlace := ok && current.exists() && known.contents == contents{t.id, current, want}
	if inPlace && known.changed == t.changed {
		// The clock of a file system may be too coarse to show the last change.
		if whole, err := t.shows(files); err != nil || whole {
			return false, err
		}
	}
	tree, err := newTree(files)
	if err != nil {
		return false, err
	}
	p.Forget(dir)
	if inPlace {
		changed, err = t.repair(ctx, current, &tree)
	} else {
		current, changed, err = t.publish(ctx, current, &tree)
	}
	if err != nil {
		return changed, err
	}
	if last, err := t.lastChange(); err == nil { // else the next call reads back
		p.remember(dir, published{contents{t.id, current, want}, last, names})
	}
	return changed, nil
}

// lock keeps other Publishers out, and sees what the last one has left.
func (p *Publisher) lock(t *target) (unlock func(), err error) {
	if p.Sole {
		return func() {}, nil
	}
	return t.lock(unix.Flock)
}

// Forget drops the memory of dir, for example when it was removed. The
// next publication reads back what is there.
func (p *Publisher) Forget(dir string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, filepath.Clean(dir))
}

func (p *Publisher) recall(dir string) (published, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.known[dir]
	return known, ok
}

func (p *Publisher) remember(dir string, what published) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = make(map[string]published)
	}
	p.known[dir] = what
}
