package volumemanager

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/util/topdir"
)

// makePodsDir makes the directory of all pods. Pods come and go, which on ext4
// without a journal is many times faster where they do not lie side by side.
func (m *Manager) makePodsDir() error {
	dir := podsDir(m.host.RootDir)
	pods, err := rootdir.Make(dir, 0o750)
	if err != nil {
		return err
	}
	defer pods.Close()
	if err := topdir.Mark(dir); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		m.log.Debug("the pods' directories will lie side by side on the disk", "error", err)
	}
	return nil
}

// podDirs keeps the removal of a pod's empty directories apart from set-ups of
// the same pod, which make directories in them. Its zero value is ready.
type podDirs struct {
	changing keylock.Map[types.UID]
	mu       sync.Mutex
	users    map[types.UID]int
}

// use keeps the pod's directories until done is called.
func (d *podDirs) use(ctx context.Context, podUID types.UID) (done func(), err error) {
	unlock, err := d.changing.Lock(ctx, podUID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	d.count(podUID, 1)
	return func() { d.count(podUID, -1) }, nil
}

func (d *podDirs) count(podUID types.UID, delta int) (users int) {
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

// removeEmpty removes the pod's directories as far as they are empty, unless a
// set-up of the pod uses them. What is not ours keeps them, and that is no
// error.
func (d *podDirs) removeEmpty(ctx context.Context, rootDir string, podUID types.UID) {
	unlock, err := d.changing.Lock(ctx, podUID)
	if err != nil {
		return
	}
	defer unlock()
	if d.count(podUID, 0) > 0 {
		return
	}
	pod := filepath.Join(podsDir(rootDir), string(podUID))
	for _, sub := range []string{"volumes", "volumeDevices", "plugins", "volume-subpaths"} {
		removeEmptyTree(filepath.Join(pod, sub))
	}
	_ = unix.Rmdir(pod)
}

// removeEmptyTree removes dir and its children where they are empty.
func removeEmptyTree(dir string) {
	children, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, child := range children {
		_ = unix.Rmdir(filepath.Join(dir, child.Name()))
	}
	_ = unix.Rmdir(dir)
}
