package fakemount

import (
	"errors"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/pathin"
)

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
