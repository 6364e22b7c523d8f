package mount

import (
	"context"
	"errors"
	"io/fs"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/flight"
)

// FakeMounter is a mount table in memory that behaves as the kernel's does,
// with effects on real directories, so that code which mounts can be tested
// without privilege. It is safe for concurrent use.
//
// It begins with one mount, an ext4 file system from /dev/root on "/", which
// stands for everything that is really there. Mounts stack, binds resolve to
// the file system that holds their source, a mount with mounts below it is
// busy, and errors wrap the errno that umount2(2) or mount(2) would give.
//
// What a mount shows:
//
//   - tmpfs and other file systems that begin empty: a real, empty directory
//     at the target, which is dropped with the last mount of the file system;
//   - anything else with a source (NFS exports, devices): the directory given
//     to [FakeMounter.Serve], or one of the fake's own for each source, which
//     outlives the mount as a server's data does; the target is replaced by a
//     symbolic link to it;
//   - a type that was given to [FakeMounter.ServeType] (overlay, squashfs): what
//     that says of the request, in the same way;
//   - a bind: a symbolic link to what is bound.
//
// What was there before is moved aside and comes back, unchanged, with the
// unmount. While something is mounted, rmdir of its target fails.
//
// A source may be a descriptor, "/proc/<pid>/fd/<number>": it leads to what was
// opened, whatever its name leads to now. Since mounts are links here, it is not
// known through which one that was opened: where several show the same
// directory, the flags are those of the newest.
//
// Its limits: "/" cannot be mounted on. The process needs write access to the
// target's parent. All mounts are private; making them shared or moving them
// is EINVAL. Read-only is recorded but not enforced. Because binds are links,
// what is mounted below a directory shows through every bind of it, and a bind
// below its own source is a loop. Sizes are not enforced. What a mount hides
// waits beside it, under a name that begins with ".podvol-fake-", where its file
// system is another than that of [FakeMounter.KeepIn]: who lists the directory,
// or removes empty ones, meets it there. While a mount covers or uncovers another
// one, and on file systems that cannot exchange two files (renameat2(2)), nothing
// stands at the target for a moment.
type FakeMounter struct {
	faults fault.Injector[Call]

	mu       sync.Mutex
	root     *fakeMount
	mounts   []*fakeMount                // oldest first
	children map[fakePlace]*fakeMount    // by where they are mounted
	supers   map[fakeSuperKey]*fakeSuper // those that a second mount shares
	slots    map[fakeDentry]*fakeSlot
	sources  map[string]string      // content by source
	served   map[string]struct{}    // those of sources that were given to Serve
	types    map[string]FakeContent // those that were given to ServeType
	names    fakeNames              // what is kept in sources, supers and slots
	devices  map[string]uint64      // device numbers by device
	asked    map[uint64]*fakeSuper  // those that SuperblockOf was asked for, by device number
	lastID   int
	lastAnon uint32
	lastName int
	keepIn   string // where scratch is made; os.TempDir if empty
	scratch  string
	spare    map[string][]string // links in scratch, by what they point to
	watchers map[chan struct{}]struct{}
}

var (
	_ ContextMounter = (*FakeMounter)(nil)
	_ tabler         = (*FakeMounter)(nil)
)

// Fault is an injected fault: it hits the calls that Match selects, before or
// after they take effect. Its fields are part of this package's API, and keep what
// they mean from one minor version to the next, though package util/fault, where
// they are defined, promises nothing else; further ones may be added, so that
// faults are to be written with field names.
type Fault = fault.Fault[Call]

// NewFakeMounter returns a fake on which nothing but "/" is mounted. Close it
// when done.
func NewFakeMounter() *FakeMounter {
	f := &FakeMounter{}
	f.reset()
	return f
}

// KeepIn makes the fake keep what mounts hide, and what it makes itself, in a
// directory of its own below dir, as long as there is anything; it is os.TempDir
// unless KeepIn was called, which must be before the first mount. Dir must exist
// until the fake is closed, and should be on the file system of the targets.
func (f *FakeMounter) KeepIn(dir string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keepIn = dir
}

// Close unmounts everything, newest first, so that what was hidden is back,
// and removes the content the fake made. The fake is as new afterwards, but
// for faults, the log and what was given to [FakeMounter.Serve],
// [FakeMounter.ServeType] and [FakeMounter.KeepIn]. Errors are those of the file system; closing twice is allowed.
func (f *FakeMounter) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for len(f.mounts) > 1 {
		if err := f.detach(f.mounts[len(f.mounts)-1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	f.changed()
	errs = append(errs, f.dropScratch())
	return errors.Join(errs...)
}

// Inject adds faults to mounts and unmounts and returns the function that
// takes just these away again; [fault.Injector] says how several go together.
// A call that hangs does so until it is released or its context ends; the
// plain methods of [Interface] have no context and hang until released. An
// injected Err that is no *[Error] is wrapped in one.
func (f *FakeMounter) Inject(faults ...Fault) (remove func()) { return f.faults.Inject(faults...) }

// Calls returns all mounts and unmounts that were called, oldest first,
// whether they failed or not. The caller owns the result.
func (f *FakeMounter) Calls() []Call {
	calls := f.faults.Calls()
	for i := range calls {
		calls[i] = calls[i].clone()
	}
	return calls
}

// ResetCalls empties the log.
func (f *FakeMounter) ResetCalls() { f.faults.ResetCalls() }

// Table returns the fake's mount table.
func (f *FakeMounter) Table() Table { return fakeTable{f} }

// MountContext implements [ContextMounter]. A mount that hangs when ctx ends
// is uncertain, as a mount by command is on the host.
func (f *FakeMounter) MountContext(ctx context.Context, r Request) error {
	if ctx.Err() != nil {
		return r.fail(ended(ctx))
	}
	return r.wrap(f.do(ctx, newCall(OpMount, RungNone, r), func() error { return f.mount(r) }))
}

// do makes one call under the faults. A call that was cut short by ctx fails
// with *[flight.AbandonedError].
func (f *FakeMounter) do(ctx context.Context, call Call, effect func() error) error {
	err := f.faults.Do(ctx, call, effect)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return &flight.AbandonedError{Started: true, Err: err}
	}
	return err
}

func (f *FakeMounter) reset() {
	f.root = &fakeMount{
		id:     1,
		super:  &fakeSuper{device: unix.Mkdev(8, 1), source: "/dev/root", fstype: "ext4", dir: "/", block: true},
		path:   "/",
		target: "/",
		isDir:  true,
	}
	f.root.super.mounts = 1
	f.mounts = []*fakeMount{f.root}
	f.children = make(map[fakePlace]*fakeMount)
	f.supers = make(map[fakeSuperKey]*fakeSuper)
	f.slots = make(map[fakeDentry]*fakeSlot)
	f.sources = make(map[string]string)
	f.served = make(map[string]struct{})
	f.types = make(map[string]FakeContent)
	f.names = make(fakeNames)
	f.devices = make(map[string]uint64)
	f.asked = make(map[uint64]*fakeSuper)
	f.spare = make(map[string][]string)
	f.watchers = make(map[chan struct{}]struct{})
	f.lastID = f.root.id
}
