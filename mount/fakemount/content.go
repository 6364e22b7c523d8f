package fakemount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/removetree"
)

// fakeSlot is a file or directory that is mounted on. The earlier content waits
// at hidden; in its place stands the content of the newest mount.
//
// Mounts on top of a mount share the slot of the one that they cover.
type fakeSlot struct {
	at     fakeDentry
	hidden string
	link   string // where the link points that stands there now; empty if none
	stack  []*fakeMount
}

func (s *fakeSlot) top() *fakeMount {
	if len(s.stack) == 0 {
		return nil
	}
	return s.stack[len(s.stack)-1]
}

// real returns where a file really is at this moment.
func (ns *namespace) real(d fakeDentry) string {
	for p := d.path; p != "" && p != "/"; p = p[:strings.LastIndexByte(p, '/')] {
		if s := ns.slots[fakeDentry{d.super, p}]; s != nil && s.hidden != "" {
			return s.hidden + d.path[len(p):]
		}
	}
	base := d.super.dir
	if d.super.slot != nil {
		base = ns.location(d.super.slot)
	}
	return path.Join(base, d.path)
}

// location returns where the slot's mount is shown.
func (ns *namespace) location(s *fakeSlot) string {
	dir, base := path.Split(s.at.path)
	return path.Join(ns.real(fakeDentry{s.at.super, path.Clean(dir)}), base)
}

// slotFor returns the slot of a mount at p; a new one is not entered yet.
func (ns *namespace) slotFor(p fakePlace) *fakeSlot {
	if p.isMountRoot() && p.mount.slot != nil {
		return p.mount.slot
	}
	if s := ns.slots[p.dentry()]; s != nil {
		return s
	}
	return &fakeSlot{at: p.dentry()}
}

// push shows m at the slot. After an error all is as before.
func (ns *namespace) push(s *fakeSlot, m *fakeMount) error {
	if len(s.stack) == 0 {
		if done, err := ns.cover(s, m); done || err != nil {
			return err
		}
		if err := ns.hideOriginal(s); err != nil {
			return err
		}
	} else if sameContent(s.top(), m) {
		s.stack, m.slot = append(s.stack, m), s
		return nil
	} else if err := ns.unshow(s, s.top()); err != nil {
		return err
	}
	if err := ns.show(s, m); err != nil {
		return errors.Join(err, ns.reveal(s))
	}
	s.stack, m.slot = append(s.stack, m), s
	return nil
}

// remove takes m from its slot, shows what it hid, and drops the content of a
// file system that was made for it and is mounted nowhere any more.
func (ns *namespace) remove(m *fakeMount) error {
	s := m.slot
	wasTop := s.top() == m
	s.stack = slices.DeleteFunc(s.stack, func(o *fakeMount) bool { return o == m })
	var errs []error
	if wasTop && (len(s.stack) == 0 || !sameContent(s.top(), m)) {
		done, err := ns.uncover(s, m)
		if !done {
			err = errors.Join(ns.unshow(s, m), ns.reveal(s))
		}
		errs = append(errs, err)
	}
	if m.super.mounts == 0 {
		errs = append(errs, ns.dropContent(m.super))
	}
	return errors.Join(errs...)
}

func sameContent(a, b *fakeMount) bool { return a.super == b.super && a.path == b.path }

// reveal shows the topmost remaining mount or file at a slot that shows nothing.
func (ns *namespace) reveal(s *fakeSlot) error {
	if top := s.top(); top != nil {
		return ns.show(s, top)
	}
	return ns.move(s.hidden, ns.location(s), func(string) {
		ns.rename(&s.hidden, "")
		delete(ns.slots, s.at)
	})
}

func (ns *namespace) hideOriginal(s *fakeSlot) error {
	err := ns.setAside(ns.location(s), func(hidden string) {
		ns.rename(&s.hidden, hidden)
		ns.slots[s.at] = s
	})
	if err != nil {
		return fmt.Errorf("moving aside the existing file: %w", err)
	}
	return nil
}

// show puts m's content at a slot at which nothing is shown.
func (ns *namespace) show(s *fakeSlot, m *fakeMount) error {
	at := ns.location(s)
	switch {
	case !m.first:
		link := ns.real(fakeDentry{m.super, m.path})
		if err := ns.placeLink(link, at); err != nil {
			return err
		}
		ns.rename(&s.link, link)
		return nil
	case m.super.dir != "":
		return ns.move(m.super.dir, at, func(string) {
			ns.rename(&m.super.dir, "")
			m.super.slot = s
		})
	}
	if err := makeRoot(at, m.super); err != nil {
		return err
	}
	m.super.slot = s
	return nil
}

// unshow takes away what m shows at the slot, and keeps it if it is content.
func (ns *namespace) unshow(s *fakeSlot, m *fakeMount) error {
	at := ns.location(s)
	if s.link != "" {
		link := s.link
		ns.rename(&s.link, "")
		return ns.takeLink(link, at)
	}
	return ns.setAside(at, func(aside string) {
		ns.rename(&m.super.dir, aside)
		m.super.slot = nil
	})
}

// makeRoot makes the root of a new, empty file system.
func makeRoot(at string, s *fakeSuper) error {
	options := s.rootOptions
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	if options.uid != -1 || options.gid != -1 {
		// A process that may not give files away keeps them.
		if err := unix.Lchown(at, options.uid, options.gid); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
			return errors.Join(&os.PathError{Op: "chown", Path: at, Err: err}, unix.Rmdir(at))
		}
	}
	if err := unix.Chmod(at, options.mode); err != nil {
		return errors.Join(&os.PathError{Op: "chmod", Path: at, Err: err}, unix.Rmdir(at))
	}
	return nil
}

// dropContent forgets a file system that is mounted nowhere.
func (ns *namespace) dropContent(s *fakeSuper) error {
	delete(ns.supers, s.key)
	dir := s.dir
	ns.rename(&s.dir, "")
	if !s.fresh || dir == "" {
		return nil
	}
	return removeTree(dir)
}

// setAside moves a file out of sight and tells done where it is.
func (ns *namespace) setAside(from string, done func(to string)) error {
	to, err := ns.scratchName("aside")
	if err != nil {
		return err
	}
	err = ns.move(from, to, done)
	if errors.Is(err, unix.EXDEV) {
		to = path.Join(path.Dir(from), ".podvol-fake-"+path.Base(ns.scratch)+"-"+path.Base(to))
		err = ns.move(from, to, done)
	}
	return err
}

// move renames a file, lets done enter that, and corrects everything that the
// fake knows to be below it.
func (ns *namespace) move(from, to string, done func(to string)) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	done(to)
	return ns.follow(fakeMove{from, to})
}

// maxSpare bounds the links that are kept for each target.
const maxSpare = 16

// placeLink makes a link or takes one that was used before: a new inode can
// cost more than all the rest of a mount, since ext4 searches past those that
// were freed in the last seconds.
func (ns *namespace) placeLink(target, at string) error {
	spare := ns.spare[target]
	if len(spare) == 0 {
		return os.Symlink(target, at)
	}
	ns.spare[target] = spare[:len(spare)-1]
	if os.Rename(spare[len(spare)-1], at) == nil {
		return nil
	}
	return os.Symlink(target, at)
}

// takeLink takes a link away.
func (ns *namespace) takeLink(target, at string) error {
	if len(ns.spare[target]) < maxSpare {
		if to, err := ns.scratchName("link"); err == nil && os.Rename(at, to) == nil {
			ns.spare[target] = append(ns.spare[target], to)
			return nil
		}
	}
	if err := unix.Unlink(at); err != nil {
		return &os.PathError{Op: "unlink", Path: at, Err: err}
	}
	return nil
}

func replaceLink(at, target string) error {
	if err := unix.Unlink(at); err != nil {
		return &os.PathError{Op: "unlink", Path: at, Err: err}
	}
	return os.Symlink(target, at)
}

// scratchName returns a new name in the fake's own directory, which is made
// when it is first needed.
func (ns *namespace) scratchName(kind string) (string, error) {
	if ns.scratch == "" {
		dir, err := os.MkdirTemp(ns.keepIn, "podvol-fake-")
		if err != nil {
			return "", err
		}
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return "", err
		}
		ns.scratch = dir
	}
	ns.lastName++
	return path.Join(ns.scratch, kind+strconv.Itoa(ns.lastName)), nil
}

// dropScratch removes the fake's own directory and all content in it.
func (ns *namespace) dropScratch() error {
	if ns.scratch == "" {
		return nil
	}
	for source, dir := range ns.sources {
		if pathin.In(ns.scratch, dir) {
			ns.names.add(dir, -1)
			delete(ns.sources, source)
		}
	}
	clear(ns.spare)
	err := removeTree(ns.scratch)
	ns.scratch = ""
	return err
}

// removeTree deletes what the fake itself made.
func removeTree(name string) error {
	return removetree.Remove(context.Background(), path.Dir(name), path.Base(name))
}

// cover shows m at a slot in one step, as the kernel does: the mount point is
// never missing, and its parent never empty, even if another call tries to remove
// it just then. It reports false, with nothing done, across file systems and
// where the file system cannot exchange files.
func (ns *namespace) cover(s *fakeSlot, m *fakeMount) (done bool, err error) {
	at := ns.location(s)
	ready, link, err := ns.ready(m, at)
	if err != nil {
		return false, err
	}
	if exchange(ready, at) != nil {
		return false, ns.unready(m, ready, link)
	}
	ns.rename(&s.hidden, ready)
	ns.slots[s.at] = s
	if link != "" {
		ns.rename(&s.link, link)
	} else {
		m.super.slot = s
	}
	s.stack, m.slot = append(s.stack, m), s
	return true, ns.follow(fakeMove{at, ready})
}

// ready makes, in the fake's own directory, the file that m will show at a place
// after the exchange. Link is its target, if it is a link.
func (ns *namespace) ready(m *fakeMount, at string) (ready, link string, err error) {
	if !m.first {
		link = ns.real(fakeDentry{m.super, m.path})
		if spare := ns.spare[link]; len(spare) > 0 && !pathin.In(at, link) {
			ns.spare[link] = spare[:len(spare)-1]
			return spare[len(spare)-1], link, nil
		}
	}
	if ready, err = ns.scratchName("aside"); err != nil {
		return "", "", err
	}
	if m.first {
		return ready, "", makeRoot(ready, m.super)
	}
	if pathin.In(at, link) { // it is hidden with the files there
		link = ready + link[len(at):]
	}
	return ready, link, os.Symlink(link, ready)
}

// unready takes away what ready has made.
func (ns *namespace) unready(m *fakeMount, ready, link string) error {
	if m.first {
		return unix.Rmdir(ready)
	}
	return ns.spareLink(link, ready)
}

// uncover is the reverse of cover, for the last mount of a slot.
func (ns *namespace) uncover(s *fakeSlot, m *fakeMount) (done bool, err error) {
	at, aside, link := ns.location(s), s.hidden, s.link
	if len(s.stack) > 0 || path.Dir(aside) != ns.scratch || exchange(aside, at) != nil {
		return false, nil
	}
	ns.rename(&s.hidden, "")
	ns.rename(&s.link, "")
	delete(ns.slots, s.at)
	if link != "" {
		return true, errors.Join(ns.follow(fakeMove{aside, at}), ns.spareLink(link, aside))
	}
	m.super.slot = nil
	err = ns.follow(fakeMove{aside, at}, fakeMove{at, aside})
	ns.rename(&m.super.dir, aside)
	return true, err
}

// spareLink keeps a link in the fake's own directory for later, or removes it.
func (ns *namespace) spareLink(target, link string) error {
	if len(ns.spare[target]) < maxSpare {
		ns.spare[target] = append(ns.spare[target], link)
		return nil
	}
	if err := unix.Unlink(link); err != nil {
		return &os.PathError{Op: "unlink", Path: link, Err: err}
	}
	return nil
}

func exchange(a, b string) error {
	return eintr.Do(func() error { return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) })
}

// fakeMove is a file that has another name now.
type fakeMove struct{ from, to string }

// follow corrects all known paths below directories that were moved at the same
// time.
func (ns *namespace) follow(moves ...fakeMove) error {
	known := 0
	for _, m := range moves {
		known += ns.names[m.from]
	}
	if known == 0 {
		return nil
	}
	now := func(name string) (string, bool) {
		for _, m := range moves {
			if name != "" && pathin.In(m.from, name) {
				return m.to + name[len(m.from):], true
			}
		}
		return name, false
	}
	follow := func(kept *string) (changed bool) {
		name, changed := now(*kept)
		if changed {
			ns.rename(kept, name)
		}
		return changed
	}
	for source, dir := range ns.sources {
		if name, changed := now(dir); changed {
			ns.serve(source, name)
		}
	}
	supers := make(map[*fakeSuper]bool)
	for _, m := range ns.mounts {
		if !supers[m.super] {
			supers[m.super] = true
			follow(&m.super.dir)
		}
	}
	for _, s := range ns.slots {
		follow(&s.hidden)
	}
	var errs []error
	for _, s := range ns.slots {
		if follow(&s.link) {
			errs = append(errs, replaceLink(ns.location(s), s.link))
		}
	}
	return errors.Join(errs...)
}
