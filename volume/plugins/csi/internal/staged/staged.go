// Package staged has the programs of one machine tell each other where they have staged the
// volumes of CSI drivers, and which of them is at work on one. A volume has one staging path
// at a time (CSI, NodeStageVolume): drivers detach it when it is unstaged at any.
package staged

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/util/rootdir"
)

// ErrBusy says that another operation on a volume is going on, in whichever program.
var ErrBusy = errors.New("it is being staged, unstaged or detached, maybe by another program")

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
	// IsMounted reports whether something is mounted at a place; nil: nothing is.
	IsMounted func(place string) (bool, error)
}

// Op is an operation on a volume. While it goes on, there is no other one.
type Op struct {
	table  Table
	dir    *os.File
	file   *os.File // has the place that is entered
	volume string
	// crashed is the place of an operation whose program has died; empty: there is none.
	crashed string
	keeps   bool // the next operation must know of it, too
}

// Begin begins an operation. The error is [ErrBusy] while there is another one. Nil for the
// empty Table.
func (t Table) Begin(volume string) (*Op, error) {
	if t.Dir == "" {
		return nil, nil
	}
	o := &Op{table: t, volume: volume}
	err := retry.Patiently(fs.ErrNotExist, o.begin) // another may remove directory and file
	if err != nil {
		return nil, err
	}
	return o, nil
}

func (o *Op) begin() error {
	own, err := rootdir.Make(o.table.Dir, 0o700)
	if err != nil {
		return err
	}
	file, err := rootdir.OpenFileAt(own, o.volume+suffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		own.Close()
		return err
	}
	err = lock(file, unix.LOCK_EX)
	if err == nil {
		var place []byte
		place, err = io.ReadAll(file)
		o.crashed = string(place)
	}
	if err != nil {
		file.Close()
		own.Close()
		return err
	}
	o.dir, o.file = own, file
	return nil
}

// lock locks a file that is there, or says that another has it.
func lock(file *os.File, how int) error {
	err := eintr.Do(func() error { return unix.Flock(int(file.Fd()), how|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrBusy
	}
	var st unix.Stat_t
	if err == nil {
		err = eintr.Do(func() error { return unix.Fstat(int(file.Fd()), &st) })
	}
	if err == nil && st.Nlink == 0 { // its operation has ended
		err = fs.ErrNotExist
	}
	return err
}

// End ends the operation. It may be called of a nil one.
func (o *Op) End() {
	if o == nil {
		return
	}
	if !o.keeps {
		_ = os.Remove(o.path(suffix))
	}
	_ = os.Remove(o.table.Dir) // which may have others
	o.file.Close()
	o.dir.Close()
}

// IsBusy reports whether an operation on a volume is going on. It makes nothing.
func (t Table) IsBusy(volume string) (bool, error) {
	file, err := os.OpenFile(filepath.Join(t.Dir, volume+suffix), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if t.Dir == "" || errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	err = lock(file, unix.LOCK_SH)
	if errors.Is(err, ErrBusy) {
		return true, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return false, err
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
	boot, err := bootID()
	if err != nil {
		return "", err
	}
	o.keeps = false
	if err := o.write(place); err != nil {
		return "", err
	}
	entry := boot + " " + place
	if is, err := os.Readlink(o.path("")); err == nil && is == entry { // it counts at every moment
		return "", nil
	}
	if err := o.remove(); err != nil {
		return "", err
	}
	return "", os.Symlink(entry, o.path(""))
}

// Elsewhere returns where the volume is staged, or may be, if that is another place. None are:
//
//   - a place that is there no more
//   - one of an earlier boot
//   - an empty one, where nothing is mounted, where a program has died: either before it had
//     the volume staged, or after it had that unstaged
func (o *Op) Elsewhere(place string) (string, error) {
	if o == nil {
		return "", nil
	}
	is, err := os.Readlink(o.path(""))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	boot, err := bootID()
	if err != nil {
		return "", err
	}
	other, now := strings.CutPrefix(is, boot+" ")
	if !now || other == place {
		return "", nil
	}
	if o.counts(other) {
		o.keeps = o.crashed != ""
		return other, nil
	}
	return "", nil
}

// counts reports whether a volume is staged at a place of the table, or may be.
func (o *Op) counts(place string) bool {
	if _, err := os.Lstat(place); errors.Is(err, fs.ErrNotExist) {
		return false
	} else if err != nil || o.crashed != place {
		return true
	}
	return !o.table.IsClear(place)
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

// Leave forgets that the volume is staged at a place. What was never noted is success.
func (o *Op) Leave(place string) error {
	if o == nil {
		return nil
	}
	is, err := os.Readlink(o.path(""))
	if _, there, _ := strings.Cut(is, " "); err == nil && there == place {
		return o.remove()
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (o *Op) remove() error {
	if err := os.Remove(o.path("")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// write notes at which place the operation is.
func (o *Op) write(place string) error {
	if err := o.file.Truncate(0); err != nil {
		return err
	}
	_, err := o.file.WriteAt([]byte(place), 0)
	return err
}

// path names a file by the open directory, so that it is no other's.
func (o *Op) path(suffix string) string {
	return filepath.Join(fmt.Sprintf("/proc/self/fd/%d", o.dir.Fd()), o.volume+suffix)
}

func bootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id)), err
}
