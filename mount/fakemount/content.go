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

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/removetree"
)

// fakeSlot is a file or directory that is mounted on. What was there waits at
// hidden; in its place stands the content of the newest mount.
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
func (f *Mounter) real(d fakeDentry) string {
	for p := d.path; p != "" && p != "/"; p = p[:strings.LastIndexByte(p, '/')] {
		if s := f.slots[fakeDentry{d.super, p}]; s != nil && s.hidden != "" {
			return s.hidden + d.path[len(p):]
		}
	}
	base := d.super.dir
	if d.super.slot != nil {
		base = f.location(d.super.slot)
	}
	return path.Join(base, d.path)
}

// location returns where the slot's mount is shown.
func (f *Mounter) location(s *fakeSlot) string {
	dir, base := path.Split(s.at.path)
	return path.Join(f.real(fakeDentry{s.at.super, path.Clean(dir)}), base)
}

// slotFor returns the slot of a mount at p; a new one is not entered yet.
func (f *Mounter) slotFor(p fakePlace) *fakeSlot {
	if p.isMountRoot() && p.mount.slot != nil {
		return p.mount.slot
	}
	if s := f.slots[p.dentry()]; s != nil {
		return s
	}
	return &fakeSlot{at: p.dentry()}
}

// push shows m at the slot. After an error all is as before.
func (f *Mounter) push(s *fakeSlot, m *fakeMount) error {
	if len(s.stack) == 0 {
		if done, err := f.cover(s, m); done || err != nil {
			return err
		}
		if err := f.hideOriginal(s); err != nil {
			return err
		}
	} else if sameContent(s.top(), m) {
		s.stack, m.slot = append(s.stack, m), s
		return nil
	} else if err := f.unshow(s, s.top()); err != nil {
		return err
	}
	if err := f.show(s, m); err != nil {
		return errors.Join(err, f.reveal(s))
	}
	s.stack, m.slot = append(s.stack, m), s
	return nil
}

// remove takes m from its slot, shows what it hid, and drops the content of a
// file system that was made for it and is mounted nowhere any more.
func (f *Mounter) remove(m *fakeMount) error {
	s := m.slot
	wasTop := s.top() == m
	s.stack = slices.DeleteFunc(s.stack, func(o *fakeMount) bool { return o == m })
	var errs []error
	if wasTop && (len(s.stack) == 0 || !sameContent(s.top(), m)) {
		done, err := f.uncover(s, m)
		if !done {
			err = errors.Join(f.unshow(s, m), f.reveal(s))
		}
		errs = append(errs, err)
	}
	if m.super.mounts == 0 {
		errs = append(errs, f.dropContent(m.super))
	}
	return errors.Join(errs...)
}

func sameContent(a, b *fakeMount) bool { return a.super == b.super && a.path == b.path }

// reveal shows what is left at a slot at which nothing is shown.
func (f *Mounter) reveal(s *fakeSlot) error {
	if top := s.top(); top != nil {
		return f.show(s, top)
	}
	return f.move(s.hidden, f.location(s), func(string) {
		f.rename(&s.hidden, "")
		delete(f.slots, s.at)
	})
}

func (f *Mounter) hideOriginal(s *fakeSlot) error {
	err := f.setAside(f.location(s), func(hidden string) {
		f.rename(&s.hidden, hidden)
		f.slots[s.at] = s
	})
	if err != nil {
		return fmt.Errorf("moving aside what is there: %w", err)
	}
	return nil
}

// show puts m's content at a slot at which nothing is shown.
func (f *Mounter) show(s *fakeSlot, m *fakeMount) error {
	at := f.location(s)
	switch {
	case !m.first:
		link := f.real(fakeDentry{m.super, m.path})
		if err := f.placeLink(link, at); err != nil {
			return err
		}
		f.rename(&s.link, link)
		return nil
	case m.super.dir != "":
		return f.move(m.super.dir, at, func(string) {
			f.rename(&m.super.dir, "")
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
func (f *Mounter) unshow(s *fakeSlot, m *fakeMount) error {
	at := f.location(s)
	if s.link != "" {
		link := s.link
		f.rename(&s.link, "")
		return f.takeLink(link, at)
	}
	return f.setAside(at, func(aside string) {
		f.rename(&m.super.dir, aside)
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
		// Who may not give files away gets them in his own name.
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
func (f *Mounter) dropContent(s *fakeSuper) error {
	delete(f.supers, s.key)
	dir := s.dir
	f.rename(&s.dir, "")
	if !s.fresh || dir == "" {
		return nil
	}
	return removeTree(dir)
}

// setAside moves a file out of sight and tells done where it is.
func (f *Mounter) setAside(from string, done func(to string)) error {
	to, err := f.scratchName("aside")
	if err != nil {
		return err
	}
	err = f.move(from, to, done)
	if errors.Is(err, unix.EXDEV) {
		to = path.Join(path.Dir(from), ".podvol-fake-"+path.Base(f.scratch)+"-"+path.Base(to))
		err = f.move(from, to, done)
	}
	return err
}

// move renames a file, lets done enter that, and corrects everything that the
// fake knows to be below it.
func (f *Mounter) move(from, to string, done func(to string)) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	done(to)
	return f.follow(fakeMove{from, to})
}

// maxSpare bounds the links that are kept for each target.
const maxSpare = 16

// placeLink makes a link or takes one that was used before: a new inode can
// cost more than all the rest of a mount, since ext4 searches past those that
// were freed in the last seconds.
func (f *Mounter) placeLink(target, at string) error {
	spare := f.spare[target]
	if len(spare) == 0 {
		return os.Symlink(target, at)
	}
	f.spare[target] = spare[:len(spare)-1]
	if os.Rename(spare[len(spare)-1], at) == nil {
		return nil
	}
	return os.Symlink(target, at)
}

// takeLink takes a link away.
func (f *Mounter) takeLink(target, at string) error {
	if len(f.spare[target]) < maxSpare {
		if to, err := f.scratchName("link"); err == nil && os.Rename(at, to) == nil {
			f.spare[target] = append(f.spare[target], to)
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
func (f *Mounter) scratchName(kind string) (string, error) {
	if f.scratch == "" {
		dir, err := os.MkdirTemp(f.keepIn, "podvol-fake-")
		if err != nil {
			return "", err
		}
		if dir, err = filepath.EvalSymlinks(dir); err != nil {
			return "", err
		}
		f.scratch = dir
	}
	f.lastName++
	return path.Join(f.scratch, kind+strconv.Itoa(f.lastName)), nil
}

// dropScratch removes the fake's own directory and all content in it.
func (f *Mounter) dropScratch() error {
	if f.scratch == "" {
		return nil
	}
	for source, dir := range f.sources {
		if pathin.In(f.scratch, dir) {
			f.names.add(dir, -1)
			delete(f.sources, source)
		}
	}
	clear(f.spare)
	err := removeTree(f.scratch)
	f.scratch = ""
	return err
}

// removeTree deletes what the fake itself made.
func removeTree(name string) error {
	return removetree.Remove(context.Background(), path.Dir(name), path.Base(name))
}
