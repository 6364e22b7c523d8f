package fakemount

import (
	"errors"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/pathin"
)

// cover shows m at a slot in place of what was there, in one step: with the
// kernel, too, a mount point is never missing, and its parent never empty, which
// somebody may be trying to remove just then. It reports whether that was done;
// it cannot be across file systems, and on some that cannot exchange files.
func (f *Mounter) cover(s *fakeSlot, m *fakeMount) (done bool, err error) {
	at := f.location(s)
	ready, link, err := f.ready(m, at)
	if err != nil {
		return false, err
	}
	if exchange(ready, at) != nil {
		return false, f.unready(m, ready, link)
	}
	f.rename(&s.hidden, ready)
	f.slots[s.at] = s
	if link != "" {
		f.rename(&s.link, link)
	} else {
		m.super.slot = s
	}
	s.stack, m.slot = append(s.stack, m), s
	return true, f.follow(fakeMove{at, ready})
}

// ready makes, in the fake's own directory, what m will show at a place when it
// is exchanged for what is there. Link is where it points, if it is a link.
func (f *Mounter) ready(m *fakeMount, at string) (ready, link string, err error) {
	if !m.first {
		link = f.real(fakeDentry{m.super, m.path})
		if spare := f.spare[link]; len(spare) > 0 && !pathin.In(at, link) {
			f.spare[link] = spare[:len(spare)-1]
			return spare[len(spare)-1], link, nil
		}
	}
	if ready, err = f.scratchName("aside"); err != nil {
		return "", "", err
	}
	if m.first {
		return ready, "", makeRoot(ready, m.super)
	}
	if pathin.In(at, link) { // it is hidden with what is there
		link = ready + link[len(at):]
	}
	return ready, link, os.Symlink(link, ready)
}

// unready takes away what ready has made.
func (f *Mounter) unready(m *fakeMount, ready, link string) error {
	if m.first {
		return unix.Rmdir(ready)
	}
	return f.spareLink(link, ready)
}

// uncover is the reverse of cover, for the last mount of a slot.
func (f *Mounter) uncover(s *fakeSlot, m *fakeMount) (done bool, err error) {
	at, aside, link := f.location(s), s.hidden, s.link
	if len(s.stack) > 0 || path.Dir(aside) != f.scratch || exchange(aside, at) != nil {
		return false, nil
	}
	f.rename(&s.hidden, "")
	f.rename(&s.link, "")
	delete(f.slots, s.at)
	if link != "" {
		return true, errors.Join(f.follow(fakeMove{aside, at}), f.spareLink(link, aside))
	}
	m.super.slot = nil
	err = f.follow(fakeMove{aside, at}, fakeMove{at, aside})
	f.rename(&m.super.dir, aside)
	return true, err
}

// spareLink keeps a link in the fake's own directory for later, or removes it.
func (f *Mounter) spareLink(target, link string) error {
	if len(f.spare[target]) < maxSpare {
		f.spare[target] = append(f.spare[target], link)
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

// follow corrects everything that the fake knows to be below what was moved at
// the same time.
func (f *Mounter) follow(moves ...fakeMove) error {
	known := 0
	for _, m := range moves {
		known += f.names[m.from]
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
			f.rename(kept, name)
		}
		return changed
	}
	for source, dir := range f.sources {
		if name, changed := now(dir); changed {
			f.serve(source, name)
		}
	}
	supers := make(map[*fakeSuper]bool)
	for _, m := range f.mounts {
		if !supers[m.super] {
			supers[m.super] = true
			follow(&m.super.dir)
		}
	}
	for _, s := range f.slots {
		follow(&s.hidden)
	}
	var errs []error
	for _, s := range f.slots {
		if follow(&s.link) {
			errs = append(errs, replaceLink(f.location(s), s.link))
		}
	}
	return errors.Join(errs...)
}
