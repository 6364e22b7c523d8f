// Package machinedir has the programs of one machine tell each other which volumes they have: in
// a directory of /run, which they share whatever their roots are.
//
//   - A program takes a [Lock] while it works on a volume. It ends with the program.
//   - An entry says what a program has, and outlives it: a link, whose text is up to its writer,
//     such as the path of a record.
//   - A path says nothing to a program that does not see it. So beside an entry is where its
//     writer looks from: its mount namespace and root directory ([Entry.IsGone]).
//   - The directories belong to root or the caller alone, or are refused (package rootdir).
package machinedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
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
	view func() (string, error)
}

// Take locks a file in a directory, which are both made; empty: the directory itself. The error
// matches [ErrBusy] while another has the lock, and is an error of package rootdir where the
// directory is not to be relied on.
func Take(dir, file string) (*Lock, error) {
	l := &Lock{path: dir, view: ownView}
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
	err := eintr.Do(func() error { return unix.Flock(int(file.Fd()), how|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrBusy
	}
	var st unix.Stat_t
	if err == nil {
		err = eintr.Do(func() error { return unix.Fstat(int(file.Fd()), &st) })
	}
	if err == nil && st.Nlink == 0 { // its holder removed it
		err = fs.ErrNotExist
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
	if l.file != l.dir {
		l.file.Close()
	}
	l.dir.Close()
}

// at is a path by the open directory, so that it is in no other.
func (l *Lock) at(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/self/fd/%d", l.dir.Fd()), name)
}

// viewSuffix is that of the link beside an entry. There is none beside one of an earlier version,
// which takes this one for an entry of something that is gone, or does not look at it.
const viewSuffix = ".in"

// Entry is what a program has noted.
type Entry struct {
	Name, Text string
	// elsewhere: its writer sees other files under the same paths, maybe.
	elsewhere bool
}

// IsElsewhere reports whether its writer looks from another mount namespace, so that what is
// mounted or missing at a path here says nothing.
func (e Entry) IsElsewhere() bool { return e.elsewhere }

// IsGone reports whether a path of an entry is certainly not there any more. A path that its
// writer may see, and this program does not, is not.
func (e Entry) IsGone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist) && !e.elsewhere
}

// Enter notes an entry, or replaces it.
func (l *Lock) Enter(name, text string) error {
	view, err := l.view()
	if err != nil {
		return err
	}
	if err := l.link(name, text); err != nil {
		return err
	}
	return l.link(name+viewSuffix, view+" "+text) // with the text, so that it is never another's
}

// link leaves a link that is there already, which counts at every moment.
func (l *Lock) link(name, text string) error {
	is, err := os.Readlink(l.at(name))
	if err == nil && is == text {
		return nil
	}
	if err := l.remove(name); err != nil {
		return err
	}
	return os.Symlink(text, l.at(name))
}

// Leave removes an entry; a missing one is success.
func (l *Lock) Leave(name string) error {
	if err := l.remove(name + viewSuffix); err != nil {
		return err
	}
	return l.remove(name)
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
	from, text, _ := strings.Cut(beside, " ")
	e.elsewhere = text == e.Text && from != view
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

// ownView is the mount namespace and the root directory of this program.
func ownView() (string, error) {
	var ns, root unix.Stat_t
	err := eintr.Do(func() error { return unix.Stat("/proc/self/ns/mnt", &ns) })
	if err == nil {
		err = eintr.Do(func() error { return unix.Stat("/", &root) })
	}
	if err != nil {
		return "", fmt.Errorf("the mount namespace of this program is not known: %w", err)
	}
	return fmt.Sprintf("%d.%d.%d", ns.Ino, root.Dev, root.Ino), nil
}

// BootID is that of the machine's boot.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
