// Package staged has the programs of one machine tell each other where they have staged the
// volumes of CSI drivers. A volume has one staging path at a time (CSI, NodeStageVolume):
// drivers detach it when it is unstaged at any.
package staged

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

// Table is a directory with a link for each volume that is staged: to the staging path, after
// the id of the machine's boot, which ends all of them. The empty Table knows of none.
type Table struct{ Dir string }

// Enter notes that a volume is staged at a place, or is to be. If it is staged elsewhere, that
// is returned, and nothing is noted. A place that is there no more counts for nothing.
func (t Table) Enter(volume, place string) (elsewhere string, err error) {
	if t.Dir == "" {
		return "", nil
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	own := strings.TrimSpace(string(boot)) + " "
	gone := "" // a place that is there no more
	for {
		elsewhere, err = t.tryEnter(volume, own, place, gone)
		if err != nil || elsewhere == "" || exists(elsewhere) { // without the lock: it may hang
			return elsewhere, err
		}
		gone = elsewhere
	}
}

// tryEnter is Enter that takes one place for gone.
func (t Table) tryEnter(volume, own, place, gone string) (elsewhere string, err error) {
	err = t.locked(func(dir *os.File) error {
		link := t.path(dir, volume)
		is, err := os.Readlink(link)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if other, now := strings.CutPrefix(is, own); now && other != place && other != gone {
			elsewhere = other
			return nil
		}
		if err == nil {
			if err := os.Remove(link); err != nil {
				return err
			}
		}
		return os.Symlink(own+place, link)
	})
	return elsewhere, err
}

// Leave forgets a volume that is not staged at a place any more, and the directory with the
// last one. What was never noted is success.
func (t Table) Leave(volume, place string) error {
	if t.Dir == "" {
		return nil
	}
	return t.locked(func(dir *os.File) error {
		link := t.path(dir, volume)
		is, err := os.Readlink(link)
		if _, there, _ := strings.Cut(is, " "); err == nil && there == place {
			err = os.Remove(link)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		_ = os.Remove(t.Dir) // which may have others
		return nil
	})
}

// path names a link by the open directory, so that it is no other's.
func (t Table) path(dir *os.File, volume string) string {
	return filepath.Join(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), volume)
}

// exists reports whether a place is there, or may be.
func exists(place string) bool {
	_, err := os.Lstat(place)
	return !errors.Is(err, fs.ErrNotExist)
}

// locked calls f while no other program changes the directory, which another may remove
// between two steps here.
func (t Table) locked(f func(dir *os.File) error) error {
	return retry.Patiently(fs.ErrNotExist, func() error {
		own, err := rootdir.Make(t.Dir, 0o700)
		if err != nil {
			return err
		}
		defer own.Close()
		dir, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", own.Fd()))
		if err != nil {
			return err
		}
		defer dir.Close()
		if err := eintr.Do(func() error { return unix.Flock(int(dir.Fd()), unix.LOCK_EX) }); err != nil {
			return err
		}
		defer func() { _ = eintr.Do(func() error { return unix.Flock(int(dir.Fd()), unix.LOCK_UN) }) }()
		return f(dir)
	})
}
