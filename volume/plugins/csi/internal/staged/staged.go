// Package staged has the programs of one machine tell each other where they have staged the
// volumes of CSI drivers, and which of them is at work on one. A volume has one staging path
// at a time (CSI, NodeStageVolume): drivers detach it when it is unstaged at any.
package staged

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/podvol/podvol/volume/internal/machinedir"
)

// Name names a volume in a table: in that of a machine by its driver's socket, too, since
// drivers of one name may be of different users.
func Name(driver, handle, socket string) string {
	sum := sha256.Sum256([]byte(driver + "\x00" + handle + "\x00" + socket))
	return hex.EncodeToString(sum[:])
}

// suffix is that of the files that are locked during operations.
const suffix = ".op"

// Table is a directory with a link for each volume that is staged: to the staging path, after
// the id of the machine's boot, which ends all of them. Beside it is a file that is locked as
// long as an operation goes on. The empty Table knows of none.
type Table struct {
	Dir string
	// Home is the caller's root directory: a place below it in another mount namespace is its
	// own, and not one of the same path below another root. Empty: no place elsewhere is.
	Home string
	// IsMounted reports whether something is mounted at a place; nil: nothing is.
	IsMounted func(place string) (bool, error)
}

// EntryOf is the path of what is noted of a volume.
func (t Table) EntryOf(volume string) string { return filepath.Join(t.Dir, volume) }

// Op is an operation on a volume. While it goes on, there is no other one.
type Op struct {
	table  Table
	lock   *machinedir.Lock // its file has the place that is entered
	volume string
	// crashed is the place of an operation whose program has died; empty: there is none.
	crashed string
	keeps   bool // the next operation must know of it, too
}

// Begin begins an operation. The error matches [machinedir.ErrBusy] while there is another one.
// Nil for the empty Table.
func (t Table) Begin(volume string) (*Op, error) {
	if t.Dir == "" {
		return nil, nil
	}
	home := ""
	if t.Home != "" {
		var err error
		if home, err = machinedir.HomeOf(t.Home); err != nil && !errors.Is(err, fs.ErrNotExist) { // nothing is below it
			return nil, err
		}
	}
	lock, err := machinedir.Take(t.Dir, volume+suffix, home)
	if err != nil {
		return nil, err
	}
	crashed, err := io.ReadAll(lock.File())
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &Op{table: t, lock: lock, volume: volume, crashed: string(crashed)}, nil
}

// End ends the operation. It may be called of a nil one.
func (o *Op) End() {
	if o == nil {
		return
	}
	if !o.keeps {
		_ = o.lock.Remove(o.volume + suffix)
	}
	_ = os.Remove(o.table.Dir) // which may have others
	o.lock.Close()
}

// IsBusy reports whether an operation on a volume is going on. It makes nothing.
func (t Table) IsBusy(volume string) (bool, error) {
	if t.Dir == "" {
		return false, nil
	}
	return machinedir.IsTaken(t.Dir, volume+suffix)
}

// Enter notes that the volume is staged at a place, or is to be. If it is staged elsewhere, that
// is returned, and nothing is noted. It does nothing for a nil operation.
func (o *Op) Enter(place string) (elsewhere string, err error) {
	if o == nil {
		return "", nil
	}
	if elsewhere, err = o.Elsewhere(place); elsewhere != "" || err != nil {
		return elsewhere, err
	}
	boot, err := machinedir.BootID()
	if err != nil {
		return "", err
	}
	o.keeps = false
	if err := o.write(place); err != nil {
		return "", err
	}
	return "", o.lock.Enter(o.volume, boot+" "+place)
}

// Elsewhere returns where the volume is staged, or may be, if that is another place. None are:
//
//   - a place that is there no more
//   - one of an earlier boot
//   - an empty one, where nothing is mounted, where a program has died: either before it had
//     the volume staged, or after it had that unstaged
//
// Of a place in another mount namespace only the boot is known.
func (o *Op) Elsewhere(place string) (string, error) {
	if o == nil {
		return "", nil
	}
	is, ok, err := o.lock.Get(o.volume)
	if err != nil || !ok {
		return "", err
	}
	boot, err := machinedir.BootID()
	if err != nil {
		return "", err
	}
	other, now := strings.CutPrefix(is.Text, boot+" ")
	if !now || other == place && is.IsOwn() {
		return "", nil
	}
	if o.counts(is, other) {
		o.keeps = o.crashed != ""
		return other, nil
	}
	return "", nil
}

// counts reports whether a volume is staged at a place of the table, or may be.
func (o *Op) counts(entry machinedir.Entry, place string) bool {
	if entry.IsGone(place) {
		return false
	}
	return o.crashed != place || entry.IsElsewhere() || !o.table.IsClear(place)
}

// IsClear reports whether a place certainly has nothing in it, and nothing mounted on it.
func (t Table) IsClear(place string) bool {
	if t.IsMounted == nil {
		return false
	}
	if mounted, err := t.IsMounted(place); mounted || err != nil {
		return false
	}
	entries, err := os.ReadDir(place)
	return errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0
}

// Leave forgets that the volume is staged at a place. What was never noted, or is of another root,
// is success.
func (o *Op) Leave(place string) error {
	if o == nil {
		return nil
	}
	is, ok, err := o.lock.Get(o.volume)
	if _, there, _ := strings.Cut(is.Text, " "); !ok || there != place || !is.IsOwn() {
		return err
	}
	return o.lock.Leave(o.volume)
}

// write notes at which place the operation is.
func (o *Op) write(place string) error {
	if err := o.lock.File().Truncate(0); err != nil {
		return err
	}
	_, err := o.lock.File().WriteAt([]byte(place), 0)
	return err
}
