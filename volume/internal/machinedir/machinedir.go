// Package machinedir has the programs of one machine tell each other which volumes they have: in
// a directory of /run, which they share whatever their roots are.
//
//   - A program takes a [Lock] while it works on a volume. It ends with the program.
//   - An entry says what a program has, and outlives it: a link, whose text is up to its writer,
//     such as the path of a record.
//   - A path says nothing to a program that does not see it. So beside an entry is where its
//     writer looks from ([Entry.IsGone]), and which directory is its writer's home
//     ([Entry.IsOwn]).
//   - The directories belong to root or the caller alone, or are refused (package rootdir).
package machinedir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/filelock"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/util/rootdir"
)

// ErrBusy says that another lock is held, in whichever program.
var ErrBusy = errors.New("another program of this machine, or another call, is at work on it")

// Lock is an open directory of entries, and a lock. Its methods are for one goroutine.
type Lock struct {
	path string
	dir  *os.File
	file *os.File // of another name, or the same as dir
	home string
	view func() (string, error)
}

// Take locks a file in a directory, which are both made; empty: the directory itself. Entries are
// those of the program whose home is a directory, as [HomeOf] names it; empty: of none, which
// may have no other mount namespace later. The error matches [ErrBusy] while another has the lock,
// and is an error of package rootdir where the directory is not to be relied on.
func Take(dir, file, home string) (*Lock, error) {
	l := &Lock{path: dir, home: cmp.Or(home, noHome), view: func() (string, error) { return viewBy(unix.Statx) }}
	err := retry.Patiently(fs.ErrNotExist, func() error { return l.take(file) }) // another may remove both
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Lock) take(name string) error {
	checked, err := rootdir.Make(l.path, 0o700)
	if err != nil {
		return err
	}
	defer checked.Close()
	if l.dir, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", checked.Fd())); err != nil {
		return err
	}
	l.file = l.dir
	if name != "" {
		if l.file, err = rootdir.OpenFileAt(checked, name, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			l.dir.Close()
			return err
		}
	}
	err = lock(l.file, unix.LOCK_EX)
	if err == nil {
		err = l.check()
	}
	if err != nil {
		l.Close()
	}
	return err
}

// check fails with fs.ErrNotExist if another has removed the directory, and maybe made it again.
func (l *Lock) check() error {
	now, err := os.Lstat(l.path)
	if err != nil {
		return err
	}
	locked, err := l.dir.Stat()
	if err == nil && !os.SameFile(now, locked) {
		err = fs.ErrNotExist
	}
	return err
}

// lock locks what is still there.
func lock(file *os.File, how int) error {
	err := filelock.LockLinked(file, how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrBusy
	}
	return err
}

// IsTaken reports whether a lock of a file in a directory is held. It makes nothing.
func IsTaken(dir, file string) (bool, error) {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = lock(f, unix.LOCK_SH)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if errors.Is(err, ErrBusy) {
		return true, nil
	}
	return false, err
}

// File is what is locked.
func (l *Lock) File() *os.File { return l.file }

// Close gives the lock back, and leaves everything as it is.
func (l *Lock) Close() {
	_ = filelock.Close(l.file)
	if l.file != l.dir {
		l.dir.Close()
	}
}

// at is a path by the open directory, so that it is in no other.
func (l *Lock) at(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/self/fd/%d", l.dir.Fd()), name)
}

// viewSuffix is that of the link beside an entry. There is none beside one of an earlier version,
// which takes this one for an entry of something that is gone, or does not look at it.
const viewSuffix = ".in"

// newPrefix is that of a link that is to replace another.
const newPrefix = ".new-"

// Entry is what a program has noted.
type Entry struct {
	Name, Text string
	// elsewhere: its writer sees other files under the same paths, maybe.
	elsewhere bool
	// own: its writer has the same home.
	own bool
}

// IsOwn reports whether an entry was written from the same home, whichever mount namespace that
// was seen from, or from here.
func (e Entry) IsOwn() bool { return e.own || !e.elsewhere }

// IsElsewhere reports whether its writer looks from another mount namespace, so that what is
// mounted or missing at a path here says nothing.
func (e Entry) IsElsewhere() bool { return e.elsewhere }

// IsGone reports whether a path of an entry is certainly not there any more. A path that its
// writer may see, and this program does not, is not.
func (e Entry) IsGone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist) && !e.elsewhere
}

// Enter notes an entry, or replaces it. Where the writer looks from is there before the entry
// is, which counts at every moment if it was there.
func (l *Lock) Enter(name, text string) error {
	view, err := l.view()
	if err != nil {
		return err
	}
	is, err := os.Readlink(l.at(name))
	isThere := err == nil && is == text
	if !isThere {
		err = l.remove(name)
	}
	if err != nil {
		return err
	}
	if err := l.replace(name+viewSuffix, view+" "+l.home+" "+text); err != nil || isThere {
		return err
	}
	return os.Symlink(text, l.at(name))
}

// replace puts a link in the place of another at once.
func (l *Lock) replace(name, text string) error {
	half := newPrefix + name
	if err := l.remove(half); err != nil {
		return err
	}
	if err := os.Symlink(text, l.at(half)); err != nil {
		return err
	}
	return os.Rename(l.at(half), l.at(name))
}

// Leave removes an entry; a missing one is success. What is beside it goes last.
func (l *Lock) Leave(name string) error {
	for _, file := range []string{name, name + viewSuffix, newPrefix + name + viewSuffix} {
		if err := l.remove(file); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lock) remove(name string) error {
	if err := os.Remove(l.at(name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Get returns an entry, and whether it is there.
func (l *Lock) Get(name string) (e Entry, ok bool, err error) {
	e.Name = name
	e.Text, err = os.Readlink(l.at(name))
	if errors.Is(err, fs.ErrNotExist) {
		return e, false, nil
	}
	if err != nil {
		return e, false, err
	}
	beside, err := os.Readlink(l.at(name + viewSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return e, true, nil
	}
	if err != nil {
		return e, false, err
	}
	view, err := l.view()
	from, rest, _ := strings.Cut(beside, " ")
	home, text, _ := strings.Cut(rest, " ")
	e.own = text == e.Text && home == l.home && home != noHome
	e.elsewhere = text != e.Text || from != view || from == unknownView
	return e, err == nil, err
}

// All returns all entries of the directory.
func (l *Lock) All() (all []Entry, err error) {
	names, err := os.ReadDir(l.at("."))
	if err != nil {
		return nil, err
	}
	for _, file := range names {
		if file.Type()&fs.ModeSymlink == 0 || strings.HasSuffix(file.Name(), viewSuffix) {
			continue
		}
		e, ok, err := l.Get(file.Name())
		if err != nil {
			return nil, err
		}
		if ok {
			all = append(all, e)
		}
	}
	return all, nil
}

// Remove removes a file of the directory that is no entry; a missing one is success.
func (l *Lock) Remove(name string) error { return l.remove(name) }

// BootID is that of the machine's boot.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
