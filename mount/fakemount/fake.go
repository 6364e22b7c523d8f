package fakemount

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/ladder"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/fault"
)

// Mounter is a mount table in memory that behaves as the kernel's does, with effects
// on real directories. So code that mounts can be tested without privilege. It is safe
// for concurrent use.
//
// It begins with one mount, an ext4 file system from /dev/root on "/", which stands for
// the real files. Mounts stack. Binds resolve to the file system that holds their source.
// A mount with mounts below it is busy. Errors wrap the errno of umount2(2) or mount(2).
//
// The content of a mount:
//
//   - tmpfs and other file systems that begin empty: a real, empty directory at the
//     target. It is dropped with the last mount of the file system.
//   - All other types with a source (NFS exports, devices): the directory given to
//     [Mounter.Serve], or one of the fake's own for each source. It outlives the
//     mount, as a server's data does. The target is replaced by a symbolic link to it.
//   - A type given to [Mounter.ServeType] (overlay, squashfs): the directory that its
//     function returns for the request, in the same way.
//   - A bind: a symbolic link to the bound file or directory.
//
// The earlier content of the target is moved aside and comes back, unchanged, with the
// unmount. While something is mounted, rmdir of its target fails.
//
// A source may be a descriptor, "/proc/<pid>/fd/<number>". It leads to the opened file,
// even if the file's name leads elsewhere now. Mounts are links here. So if several
// mounts show the same directory, it is not known through which one the file was opened;
// the flags are the newest mount's.
//
// The limits:
//
//   - "/" cannot be mounted on. The process needs write access to the target's parent.
//   - All mounts are private. Making them shared or moving them is EINVAL.
//   - Read-only is recorded but not enforced. Sizes are not enforced.
//   - Binds are links. So mounts below a directory show through every bind of it, and a
//     bind below its own source is a loop.
//   - The hidden content of a target stays beside the target, under a name that
//     begins with ".podvol-fake-", if its file system is not the one of
//     [Mounter.KeepIn]. Programs that list the directory, or remove empty ones,
//     see it there.
//   - While a mount covers or uncovers another one, the target does not exist for a
//     moment. The same happens on file systems that cannot exchange two files
//     (renameat2(2)).
type Mounter struct {
	faults fault.Injector[Call]
	ns     *namespace
}

var (
	_ mount.ContextMounter = (*Mounter)(nil)
	_ table.Tabler         = (*Mounter)(nil)
)

// Fault is an injected fault. It hits the calls that Match selects, before or after they
// take effect. Its fields are part of this package's API and keep their meaning from one
// minor version to the next. They are defined in package util/fault, which makes no other
// promise. Further fields may be added, so write faults with field names.
type Fault = fault.Fault[Call]

// New returns a fake whose only mount is "/". Close it when done.
func New() *Mounter {
	f := &Mounter{ns: &namespace{}}
	f.ns.reset()
	return f
}

// Beside returns a mounter of the same mounts with faults and a log of its own: that of
// another process, such as a storage driver. Closing either closes both.
func (f *Mounter) Beside() *Mounter { return &Mounter{ns: f.ns} }

// KeepIn sets the directory for hidden content and for the fake's own content. The fake
// uses a directory of its own below dir, as long as it needs one. The default is
// os.TempDir. KeepIn must be called before the first mount. dir must exist until the fake
// is closed. It should be on the file system of the targets.
func (f *Mounter) KeepIn(dir string) {
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	f.ns.keepIn = dir
}

// Close unmounts everything, newest first, so that hidden content is back, and removes
// the fake's own content. Afterwards the fake is as new, except for faults, the log and
// the arguments of [Mounter.Serve], [Mounter.ServeType] and [Mounter.KeepIn].
// Its errors come from the file system. It may be called twice.
func (f *Mounter) Close() error {
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	var errs []error
	for len(f.ns.mounts) > 1 {
		if err := f.ns.detach(f.ns.mounts[len(f.ns.mounts)-1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	f.ns.changed()
	errs = append(errs, f.ns.dropScratch())
	return errors.Join(errs...)
}

// Inject adds faults to mounts and unmounts. It returns the function that removes just
// these faults. [fault.Injector] says how several faults combine. A hanging call hangs
// until it is released or its context ends. The plain methods of [mount.Interface] have no
// context and hang until released. An injected Err that is no *[mount.Error] is wrapped in one.
func (f *Mounter) Inject(faults ...Fault) (remove func()) { return f.faults.Inject(faults...) }

// Calls returns all calls of mount and unmount, oldest first, also the failed ones. The
// caller owns the result.
func (f *Mounter) Calls() []Call {
	calls := f.faults.Calls()
	for i := range calls {
		calls[i] = calls[i].clone()
	}
	return calls
}

// ResetCalls empties the log.
func (f *Mounter) ResetCalls() { f.faults.ResetCalls() }

// Table returns the fake's mount table.
func (f *Mounter) Table() mount.Table { return fakeTable{f} }

// MountContext implements [mount.ContextMounter]. A mount that hangs when ctx ends is
// uncertain, as a mount by command is on the host.
func (f *Mounter) MountContext(ctx context.Context, r mount.Request) error {
	if ctx.Err() != nil {
		return r.NotBegun(ladder.Ended(ctx))
	}
	return r.Failed(f.do(ctx, newCall(mount.OpMount, mount.RungNone, r), func() error { return f.ns.mount(r) }))
}

// do makes one call under the faults. A call that was cut short by ctx fails
// with *[blockingcall.AbandonedError].
func (f *Mounter) do(ctx context.Context, call Call, effect func() error) error {
	err := f.faults.Do(ctx, call, effect)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return &blockingcall.AbandonedError{Started: true, Err: err}
	}
	return err
}

// namespace holds the mounts, and what they show. Its methods are called with mu
// held, but mount, unmount and unmountLazily, which take it.
type namespace struct {
	mu       sync.Mutex
	root     *fakeMount
	mounts   []*fakeMount                // oldest first
	children map[fakePlace]*fakeMount    // by where they are mounted
	supers   map[fakeSuperKey]*fakeSuper // those that a second mount shares
	slots    map[fakeDentry]*fakeSlot
	sources  map[string]string     // content by source
	served   map[string]struct{}   // of sources that were given to Serve
	types    map[string]Content    // those that were given to ServeType
	names    fakeNames             // the names in sources, supers and slots
	devices  map[string]uint64     // device numbers by device
	asked    map[uint64]*fakeSuper // those that SuperblockOf was asked for, by device number
	lastID   int
	lastAnon uint32
	lastName int
	keepIn   string // where scratch is made; os.TempDir if empty
	scratch  string
	spare    map[string][]string // links in scratch, by what they point to
	watchers map[chan struct{}]struct{}
}

func (ns *namespace) reset() {
	ns.root = &fakeMount{
		id:     1,
		super:  &fakeSuper{device: unix.Mkdev(8, 1), source: "/dev/root", fstype: "ext4", dir: "/", block: true},
		path:   "/",
		target: "/",
		isDir:  true,
	}
	ns.root.super.mounts = 1
	ns.mounts = []*fakeMount{ns.root}
	ns.children = make(map[fakePlace]*fakeMount)
	ns.supers = make(map[fakeSuperKey]*fakeSuper)
	ns.slots = make(map[fakeDentry]*fakeSlot)
	ns.sources = make(map[string]string)
	ns.served = make(map[string]struct{})
	ns.types = make(map[string]Content)
	ns.names = make(fakeNames)
	ns.devices = make(map[string]uint64)
	ns.asked = make(map[uint64]*fakeSuper)
	ns.spare = make(map[string][]string)
	ns.watchers = make(map[chan struct{}]struct{})
	ns.lastID = ns.root.id
}

// Mount implements [mount.Interface] by MountContext without a deadline.
func (f *Mounter) Mount(source, target, fstype string, options []string) error {
	return f.MountSensitive(source, target, fstype, options, nil)
}

// MountSensitive implements [mount.Interface] by MountContext without a deadline.
func (f *Mounter) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	return f.MountContext(context.Background(), mount.Request{
		Source: source, Target: target, FSType: fstype, Options: options, Sensitive: sensitive,
	})
}

// MountSensitiveWithoutSystemd is MountSensitive.
func (f *Mounter) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return f.MountSensitive(source, target, fstype, options, sensitive)
}

// MountSensitiveWithoutSystemdWithMountFlags is MountSensitive; the flags are for
// a command that the fake does not run.
func (f *Mounter) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, _ []string) error {
	return f.MountSensitive(source, target, fstype, options, sensitive)
}

// Unmount implements [mount.Interface]: the normal rung, without a deadline.
func (f *Mounter) Unmount(target string) error {
	_, err := f.UnmountContext(context.Background(), target, mount.UnmountOptions{})
	return err
}

// List returns all mounts, oldest first, "/" included.
func (f *Mounter) List() ([]mount.MountPoint, error) {
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	points := make([]mount.MountPoint, len(f.ns.mounts))
	for i, m := range f.ns.mounts {
		points[i] = mount.MountPoint{Device: m.super.source, Path: m.target, Type: m.super.fstype, Opts: mounttable.AllOptions(m.entry())}
	}
	return points, nil
}

// IsMountPoint reports whether path, links followed, is a mount point. The error
// matches [fs.ErrNotExist] if path does not exist.
func (f *Mounter) IsMountPoint(path string) (bool, error) {
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	at, err := f.ns.walk(path, true)
	if err != nil {
		return false, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return at.isMountRoot(), nil
}

// IsLikelyNotMountPoint is the contrary of IsMountPoint, errors included. Unlike
// its name it is exact.
func (f *Mounter) IsLikelyNotMountPoint(path string) (bool, error) {
	is, err := f.IsMountPoint(path)
	return !is, err
}

// CanSafelySkipMountPointCheck is false: unmounting a path without a mount fails.
func (f *Mounter) CanSafelySkipMountPointCheck() bool { return false }

// GetMountRefs returns the targets of all mounts that show the same directory as
// path, without the mounts at path itself. path may be a mount point or a
// directory that is bound elsewhere. A missing path has no references.
func (f *Mounter) GetMountRefs(name string) ([]string, error) {
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	at, err := f.ns.walk(name, true)
	if isMissing(err) {
		return []string{}, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	clean := path.Clean(name)
	refs := []string{}
	for _, m := range f.ns.mounts {
		if m != at.mount && m.target != clean && m.super == at.mount.super && m.path == at.path {
			refs = append(refs, m.target)
		}
	}
	return refs, nil
}

func isMissing(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }
