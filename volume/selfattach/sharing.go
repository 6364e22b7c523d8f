package selfattach

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/machinedir"
)

// sharing is how the programs of one machine tell each other which volumes they have attached:
// a directory for each volume, with an entry for each program's record of it. The entry is named
// by the directory of records, not by its path, which another program has in its mount namespace. Who attaches or
// detaches has the lock of the directory. The zero value: no other program attaches.
type sharing struct{ dir string }

// errBusy says that another program attaches or detaches the volume right now.
var errBusy = volume.NothingDone(errors.New("another program of this machine attaches or detaches the volume right now"))

// share is a volume's directory, locked. A nil share: no other program has the volume.
type share struct {
	lock *machinedir.Lock
	path string
	own  string // the record
	name string // of the entry
}

// lock locks a volume for the program with a record of it. It fails at once if another program
// has the lock.
func (s sharing) lock(name v1.UniqueVolumeName, own string) (*share, error) {
	if s.dir == "" {
		return nil, nil
	}
	home, err := homeOf(filepath.Dir(own))
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	l := &share{path: filepath.Join(s.dir, fileOf(name)), own: own, name: nameOf(home, own)}
	if l.lock, err = machinedir.Take(l.path, "", home); errors.Is(err, machinedir.ErrBusy) {
		err = errBusy
	}
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	return l, nil
}

// homeOf names the directory of records, which is made where it is missing.
func homeOf(dir string) (string, error) {
	made, err := rootdir.Make(dir, 0o700)
	if err != nil {
		return "", err
	}
	defer made.Close()
	return machinedir.HomeOf(dir)
}

func nameOf(home, record string) string {
	sum := sha256.Sum256([]byte(home + " " + record))
	return hex.EncodeToString(sum[:])
}

// enter notes that this program has the volume, or is about to.
func (l *share) enter() error {
	if l == nil {
		return nil
	}
	return volume.NothingDone(l.lock.Enter(l.name, l.own))
}

// leave is for a program that does not have it any more.
func (l *share) leave() error {
	if l == nil {
		return nil
	}
	return l.lock.Leave(l.name)
}

// other returns the record of another program that has the volume; empty: there is none. A
// record that is there no more counts for nothing.
func (l *share) other() (string, error) {
	if l == nil {
		return "", nil
	}
	all, err := l.lock.All()
	if err != nil {
		return "", err
	}
	for _, e := range all {
		if e.Name == l.name {
			continue
		}
		isOwn := e.Text == l.own && e.IsOwn() // of when the directory was another
		if !isOwn && !e.IsGone(e.Text) {
			return e.Text, nil
		}
		if err := l.lock.Leave(e.Name); err != nil {
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
	l.lock.Close()
}
