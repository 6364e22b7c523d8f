package selfattach

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/volume"
)

// sharing is how the programs of one machine tell each other which volumes they have attached:
// a directory for each volume, with a link to each program's record of it. Who attaches or
// detaches has the lock of the directory. The zero value: no other program attaches.
type sharing struct{ dir string }

// errBusy says that another program attaches or detaches the volume right now.
var errBusy = volume.NothingDone(errors.New("another program of this machine attaches or detaches the volume right now"))

// share is a volume's directory, locked. A nil share: no other program has the volume.
type share struct {
	dir  *os.File
	path string
	own  string // the record
}

// lock locks a volume for the program with a record of it. It fails at once if another program
// has the lock.
func (s sharing) lock(name v1.UniqueVolumeName, own string) (*share, error) {
	if s.dir == "" {
		return nil, nil
	}
	l := &share{path: filepath.Join(s.dir, fileOf(name)), own: own}
	err := retry.Patiently(fs.ErrNotExist, func() error {
		checked, err := rootdir.Make(l.path, 0o700)
		if err != nil {
			return err
		}
		defer checked.Close()
		l.dir, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", checked.Fd()))
		if err != nil {
			return err
		}
		err = eintr.Do(func() error { return unix.Flock(int(l.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errBusy
		}
		if err == nil {
			err = l.check()
		}
		if err != nil {
			l.dir.Close()
		}
		return err
	})
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	return l, nil
}

// check fails with fs.ErrNotExist if another program has removed the directory before it was
// locked.
func (l *share) check() error {
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

// link is a path by the open directory, so that it is in no other.
func (l *share) link(name string) string {
	return filepath.Join(fmt.Sprintf("/proc/self/fd/%d", l.dir.Fd()), name)
}

func nameOf(record string) string {
	sum := sha256.Sum256([]byte(record))
	return hex.EncodeToString(sum[:])
}

// enter notes that this program has the volume, or is about to.
func (l *share) enter() error {
	if l == nil {
		return nil
	}
	if err := os.Symlink(l.own, l.link(nameOf(l.own))); !errors.Is(err, fs.ErrExist) {
		return volume.NothingDone(err)
	}
	return nil
}

// leave is for a program that does not have it any more.
func (l *share) leave() error {
	if l == nil {
		return nil
	}
	if err := os.Remove(l.link(nameOf(l.own))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// other returns the record of another program that has the volume; empty: there is none. A
// record that is there no more counts for nothing.
func (l *share) other() (string, error) {
	if l == nil {
		return "", nil
	}
	links, err := l.dir.ReadDir(-1)
	if err != nil {
		return "", err
	}
	for _, link := range links {
		record, err := os.Readlink(l.link(link.Name()))
		if err != nil {
			return "", err
		}
		if record == l.own {
			continue
		}
		if _, err := os.Lstat(record); !errors.Is(err, fs.ErrNotExist) {
			return record, nil
		}
		if err := os.Remove(l.link(link.Name())); err != nil {
			return "", err
		}
	}
	return "", nil
}

// unlock unlocks the volume, and removes its directory where no program has it, and the one
// above where no volume is left.
func (l *share) unlock() {
	if l == nil {
		return
	}
	if os.Remove(l.path) == nil { // it is empty
		_ = os.Remove(filepath.Dir(l.path))
	}
	l.dir.Close()
}
