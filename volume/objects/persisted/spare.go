package persisted

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/eintr"
)

const (
	spareFile = "spare"
	// spareSize is room for some dozen records of usual size, and sparePiece the
	// size given up at a time: more than one of them, and few are larger.
	spareSize, sparePiece = 256 << 10, 64 << 10
)

// spare is a file with nothing in it but room on the disk, which is given up for
// what makes room: a claim can be deleted from a full disk, though that
// takes records that are larger than before.
type spare struct {
	path string
	mu   *sync.Mutex
}

func newSpare(dir string) spare {
	return spare{path: filepath.Join(dir, spareFile), mu: new(sync.Mutex)}
}

// fill makes the file as large as it should be, where there is room. Without it,
// or on a file system that promises no room in advance, everything works as long
// as the disk is not full.
func (s spare) fill() {
	f, err := os.OpenFile(s.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() >= spareSize {
		return
	}
	if eintr.Do(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, spareSize) }) != nil {
		_ = f.Truncate(info.Size()) // it may have got a part
	}
}

// spend calls write, and again for as long as the disk is full and there is
// something to give up for it.
func (s spare) spend(write func() error) error {
	for {
		err := write()
		if !isFull(err) || !s.giveUp() {
			return err
		}
	}
}

// giveUp reports whether there is more room now.
func (s spare) giveUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Lstat(s.path)
	if err != nil || info.Size() == 0 {
		return false
	}
	return os.Truncate(s.path, max(0, info.Size()-sparePiece)) == nil
}

func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// goes reports whether an object is on its way to be deleted, or its data is.
func goes(object metav1.Object) bool {
	if object.GetDeletionTimestamp() != nil {
		return true
	}
	pv, ok := object.(*v1.PersistentVolume)
	return ok && (pv.Status.Phase == v1.VolumeReleased || pv.Status.Phase == v1.VolumeFailed)
}
