package fakemount

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/ladder"
	"github.com/podvol/podvol/util/pathin"
)

// fakeMount is one mount.
type fakeMount struct {
	id     int
	super  *fakeSuper
	path   string // what of super is shown; "/" for all of it
	parent *fakeMount
	on     fakePlace // where it is mounted, in parent
	target string
	flags  uintptr // of PerMountFlags
	isDir  bool
	slot   *fakeSlot // nil for "/"
	first  bool      // it made the file system, and is where an empty one stands
	mounts int       // those that it is the parent of
	gone   bool
	users  int
	// ladders are those that unmount it by now.
	ladders ladder.Ladders
}

// fakeSuper is a file system, as opposed to its mounts.
type fakeSuper struct {
	key     fakeSuperKey // zero if it is not shared by further mounts
	device  uint64
	source  string
	fstype  string
	options []string
	flags   uintptr // of PerSuperFlags
	block   bool
	mounts  int
	users   int
	// Its content stands at slot if that is set, else at dir. Fresh means
	// that the content goes with the last mount.
	dir   string
	slot  *fakeSlot
	fresh bool
	// rootOptions are for the root of a file system that starts empty.
	rootOptions fakeRoot
}

// fakeSuperKey is what two mounts must have in common to share a file system.
// Options are empty for block devices, which can have only one.
type fakeSuperKey struct{ source, fstype, options string }

func (m *fakeMount) entry() mount.Entry {
	e := mount.Entry{
		ID: m.id, Device: m.super.device, Root: m.path, Target: m.target,
		Source: m.super.source, FSType: m.super.fstype,
		Options:      flagNames(m.flags),
		SuperOptions: slices.Concat(superFlagNames(m.super.flags), m.super.options),
	}
	if m.parent != nil {
		e.ParentID = m.parent.id
	}
	return e
}

// mount is the effect of a request. The error holds an errno.
func (ns *namespace) mount(r mount.Request) error {
	if err := r.Check(); err != nil {
		return err
	}
	options, err := parseFakeOptions(r)
	if err != nil {
		return err
	}
	ns.mu.Lock()
	defer ns.mu.Unlock()
	at, err := ns.mountPoint(r.Target)
	if err != nil {
		return err
	}
	switch {
	case options.OnlyPropagation(r.FSType, r.Source, r.Target):
		return mustBeMounted(at)
	case options.Remount:
		err = ns.remount(at, options)
	case at.mount == ns.root && at.path == "/":
		err = &fakeError{"the fake cannot mount on /", unix.EBUSY}
	case options.Bind:
		err = ns.bind(r.Source, at, options)
	default:
		err = ns.mountNew(r, at, options)
	}
	if err == nil {
		ns.changed()
	}
	return err
}

// mountPoint looks up the file to mount on.
func (ns *namespace) mountPoint(target string) (fakePlace, error) {
	at, isLink, err := ns.walkTo(target, false)
	switch {
	case isMissing(err):
		return at, failure.Of(mount.ErrNoTarget, err)
	case err == nil && isLink:
		return at, failure.Of(mount.ErrTargetIsLink, nil)
	}
	return at, err
}

func mustBeMounted(p fakePlace) error {
	if !p.isMountRoot() {
		return failure.Of(mount.ErrNotMounted, unix.EINVAL)
	}
	return nil
}

// remount changes the mount at p, and unless bind is set, its file system too.
// What the options do not mention stays.
func (ns *namespace) remount(p fakePlace, options fakeOptions) error {
	if err := mustBeMounted(p); err != nil {
		return err
	}
	m := p.mount
	if !options.Bind {
		changes := options.shown
		if m.super.fstype == "tmpfs" {
			var err error
			if changes, err = tmpfsOptions(changes); err != nil {
				return err
			}
			changes = slices.DeleteFunc(changes, givenOnce)
		}
		m.super.options = setOptions(m.super.options, changes)
		m.super.flags = options.ApplyToSuper(m.super.flags)
	}
	m.flags = options.ApplyToMount(m.flags)
	if options.IsDeep() {
		for _, below := range ns.mountsBelow(fakePlace{m, m.path}) {
			below.flags = options.ApplyBelow(below.flags)
		}
	}
	return nil
}

// givenOnce reports whether an option of tmpfs is ignored by a remount.
func givenOnce(option string) bool {
	name, _, _ := strings.Cut(option, "=")
	return name == "mode" || name == "uid" || name == "gid"
}

// bind mounts what source leads to at p, with the options of the mount that
// holds it and then the requested ones.
func (ns *namespace) bind(source string, p fakePlace, options fakeOptions) error {
	from, isDir, err := ns.bindSource(source)
	if err != nil {
		return err
	}
	// Taken before the bind, which may lie below its own source.
	var below []*fakeMount
	if options.Recursive {
		below = ns.mountsBelow(from)
	}
	m := &fakeMount{super: from.mount.super, path: from.path, isDir: isDir, flags: options.ApplyToMount(from.mount.flags)}
	if err := ns.attach(m, p); err != nil {
		return err
	}
	copies := map[*fakeMount]*fakeMount{from.mount: m}
	for _, b := range below {
		c := &fakeMount{super: b.super, path: b.path, isDir: b.isDir, flags: options.ApplyBelow(b.flags)}
		if err := ns.attach(c, fakePlace{copies[b.parent], b.on.path}); err != nil {
			return errors.Join(fmt.Errorf("copy of %s: %w", b.target, err), ns.detach(m))
		}
		copies[b] = c
	}
	return nil
}

func (ns *namespace) bindSource(source string) (from fakePlace, isDir bool, err error) {
	if from, err = ns.walk(source, true); err == nil {
		isDir, err = ns.isDir(from)
	}
	if isMissing(err) {
		err = failure.Of(mount.ErrNoSource, err)
	}
	return from, isDir, err
}

// mountsBelow are the mounts at and below p, parents first.
func (ns *namespace) mountsBelow(p fakePlace) []*fakeMount {
	if p.mount.mounts == 0 {
		return nil
	}
	var below []*fakeMount
	for _, m := range ns.mounts { // oldest first, and so parents first
		if m.parent == p.mount && pathin.In(p.path, m.on.path) || slices.Contains(below, m.parent) {
			below = append(below, m)
		}
	}
	return below
}

// mountNew mounts a file system that has a type.
func (ns *namespace) mountNew(r mount.Request, p fakePlace, options fakeOptions) error {
	fstype := r.FSType
	if fstype == "" || fstype == "auto" {
		if !strings.Contains(r.Source, ":/") {
			return &fakeError{"the fake cannot guess the type of " + strconv.Quote(r.Source), unix.EINVAL}
		}
		fstype = "nfs" // as mount(8) takes it
	}
	super, err := ns.super(r, fstype, options)
	if err != nil {
		return err
	}
	if p.isMountRoot() && p.mount.super == super {
		return unix.EBUSY // the kernel refuses the same thing on itself
	}
	m := &fakeMount{super: super, path: "/", isDir: true, flags: options.ApplyToMount(0), first: super.fresh}
	if err := ns.attach(m, p); err != nil {
		if super.mounts == 0 {
			ns.rename(&super.dir, "") // it is not kept
		}
		return err
	}
	if super.key != (fakeSuperKey{}) {
		ns.supers[super.key] = super
	}
	return nil
}

// attach puts a new mount at p and shows it.
func (ns *namespace) attach(m *fakeMount, p fakePlace) error {
	isDir, err := ns.isDir(p)
	if err != nil {
		return err
	}
	if isDir != m.isDir {
		return failure.Of(mount.ErrKindMismatch, unix.ENOTDIR)
	}
	m.parent, m.on = p.mount, p
	m.target = path.Join(p.mount.target, strings.TrimPrefix(p.path, p.mount.path))
	if p.mount.path == "/" {
		m.target = path.Join(p.mount.target, p.path)
	}
	if err := ns.push(ns.slotFor(p), m); err != nil {
		return err
	}
	ns.lastID++
	m.id = ns.lastID
	m.super.mounts++
	m.parent.mounts++
	ns.mounts = append(ns.mounts, m)
	ns.children[p] = m
	return nil
}

// detach takes a mount and all that is on or below it out of the table, and shows
// the hidden content again.
func (ns *namespace) detach(m *fakeMount) error {
	var first error
	doomed := append([]*fakeMount{m}, ns.mountsBelow(fakePlace{m, m.path})...)
	for _, d := range slices.Backward(doomed) {
		d.gone = true
		delete(ns.children, d.on)
		ns.forget(d)
		d.super.mounts--
		d.parent.mounts--
		if err := ns.remove(d); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// forget takes a mount out of the list, which is in the order of the numbers.
func (ns *namespace) forget(m *fakeMount) {
	i, ok := slices.BinarySearchFunc(ns.mounts, m.id, func(o *fakeMount, id int) int { return cmp.Compare(o.id, id) })
	if ok {
		ns.mounts = slices.Delete(ns.mounts, i, i+1)
	}
}
