package rootdir

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/util/topdir"
)

// MakePodsDir makes the directory of all pods. Pods come and go, which on ext4
// without a journal is many times faster where they do not lie side by side.
func MakePodsDir(rootDir string, log *slog.Logger) error {
	dir := PodsDir(rootDir)
	pods, err := rootdir.Make(dir, 0o750)
	if err != nil {
		return err
	}
	defer pods.Close()
	if err := topdir.Mark(dir); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		log.Debug("the pods' directories will lie side by side on the disk", "error", err)
	}
	return nil
}

// PodDirs keeps the removal of a pod's empty directories apart from set-ups of
// the same pod, which make directories in them. Its zero value is ready.
type PodDirs struct {
	changing keylock.Map[types.UID]
	mu       sync.Mutex
	users    map[types.UID]int
	Rmdir    func(path string) error // by tests; nil: rmdir(2)
}

// Use keeps the pod's directories until done is called.
func (d *PodDirs) Use(ctx context.Context, podUID types.UID) (done func(), err error) {
	unlock, err := d.changing.Lock(ctx, podUID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	d.count(podUID, 1)
	return func() { d.count(podUID, -1) }, nil
}

func (d *PodDirs) count(podUID types.UID, delta int) (users int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users == nil {
		d.users = make(map[types.UID]int)
	}
	d.users[podUID] += delta
	users = d.users[podUID]
	if users == 0 {
		delete(d.users, podUID)
	}
	return users
}

// RemoveEmpty removes the pod's directories as far as they are empty, unless a
// set-up of the pod uses them. Foreign files keep them, and that is no error. A
// failing disk is one, since no call would look at them again.
func (d *PodDirs) RemoveEmpty(ctx context.Context, rootDir string, podUID types.UID) error {
	unlock, err := d.changing.Lock(ctx, podUID)
	if err != nil {
		return err
	}
	defer unlock()
	if d.count(podUID, 0) > 0 {
		return nil
	}
	return removeEmptyPod(rootDir, podUID, d.Rmdir)
}

// removeEmptyPod does it by rmdir, or rmdir(2) where that is nil.
func removeEmptyPod(rootDir string, podUID types.UID, rmdir func(path string) error) error {
	if rmdir == nil {
		rmdir = unix.Rmdir
	}
	pod := filepath.Join(PodsDir(rootDir), string(podUID))
	var errs []error
	for _, sub := range []string{"volumes", "volumeDevices", "plugins", "volume-subpaths"} {
		errs = append(errs, removeEmptyTree(filepath.Join(pod, sub), rmdir))
	}
	return errors.Join(append(errs, ifFailing(pod, rmdir(pod)))...)
}

// removeEmptyTree removes dir and its children where they are empty.
func removeEmptyTree(dir string, rmdir func(path string) error) error {
	children, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{ifFailing(dir, err)}
	for _, child := range children {
		path := filepath.Join(dir, child.Name())
		errs = append(errs, ifFailing(path, rmdir(path)))
	}
	return errors.Join(append(errs, ifFailing(dir, rmdir(dir)))...)
}

// ifFailing is the error of a disk or a file system that fails. All others say
// that a directory is not there, not empty, or another user's.
func ifFailing(path string, err error) error {
	for _, fails := range []error{unix.EIO, unix.EUCLEAN, unix.EROFS, unix.ENOSPC, unix.EDQUOT, unix.ENOMEM} {
		if errors.Is(err, fails) {
			return &fs.PathError{Op: "rmdir", Path: path, Err: fails}
		}
	}
	return nil
}
