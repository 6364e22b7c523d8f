package rootdir

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/layout"
)

// MakePodsDir makes the directory of all pods.
func MakePodsDir(rootDir string) error {
	pods, err := rootdir.Make(PodsDir(rootDir), 0o750)
	if err != nil {
		return err
	}
	return pods.Close()
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
// failing disk is one, since no call would look at them again. The last volume of most
// pods is its plugin's only one: where plugin names it, nothing has to be listed.
func (d *PodDirs) RemoveEmpty(ctx context.Context, rootDir string, podUID types.UID, plugin string) error {
	unlock, err := d.changing.Lock(ctx, podUID)
	if err != nil {
		return err
	}
	defer unlock()
	if d.count(podUID, 0) > 0 {
		return nil
	}
	return removeEmptyPod(rootDir, podUID, plugin, d.Rmdir)
}

// removeEmptyPod does it by rmdir, or rmdir(2) where that is nil.
func removeEmptyPod(rootDir string, podUID types.UID, plugin string, rmdir func(path string) error) error {
	if rmdir == nil {
		rmdir = unix.Rmdir
	}
	pod := filepath.Join(PodsDir(rootDir), string(podUID))
	if plugin != "" {
		for _, sub := range []string{"volumes", "plugins"} { // where some plugins keep marks
			dir := filepath.Join(pod, sub)
			if all, err := removeAll(rmdir, filepath.Join(dir, layout.EscapeQualifiedName(plugin)), dir, pod); all || err != nil {
				return err
			}
		}
	}
	var errs []error
	for _, sub := range []string{"volumes", "volumeDevices", "plugins", "volume-subpaths"} {
		errs = append(errs, removeEmptyTree(filepath.Join(pod, sub), rmdir))
	}
	return errors.Join(append(errs, ifFailing(pod, rmdir(pod)))...)
}

// removeAll removes directories until one stays, and reports whether none has.
func removeAll(rmdir func(path string) error, dirs ...string) (all bool, err error) {
	for _, dir := range dirs {
		if err := rmdir(dir); err != nil {
			return false, ifFailing(dir, err)
		}
	}
	return true, nil
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

// VolumePlace is where a volume is that is known by its key alone.
func VolumePlace(rootDir string, key Key) string {
	place := func(kind string) string {
		return filepath.Join(PodsDir(rootDir), string(key.PodUID), kind, layout.EscapeQualifiedName(key.Plugin), key.Spec)
	}
	path := place("volumes")
	if _, err := os.Readlink(place("volumeDevices")); err == nil {
		path = place("volumeDevices")
	}
	return path
}

// PodsDir returns the directory of all pods.
func PodsDir(rootDir string) string { return filepath.Join(rootDir, "pods") }

// HasPod reports whether there is, or may be, a directory of the pod.
func HasPod(rootDir string, podUID types.UID) bool {
	return isThere(filepath.Join(PodsDir(rootDir), string(podUID)))
}

// isThere reports whether something has, or may have, this name. readlink(2) tells it without a
// question to the file system of what is there: its server may not answer.
func isThere(path string) bool {
	var target [1]byte
	err := eintr.Do(func() error { _, err := unix.Readlink(path, target[:]); return err })
	return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENAMETOOLONG) // which nothing has
}

// MakeWay makes a new pod's directories around a volume's, if that is below them, from the top
// down: its plugin would first find one after the other missing. It need not succeed, since the
// plugin makes the missing ones all the same, and says why it cannot.
func MakeWay(host *volume.Host, key Key, volumeDir string) {
	plugin := filepath.Dir(host.GetPodVolumeDir(key.PodUID, key.Plugin, key.Spec))
	if !pathin.Strictly(plugin, volumeDir) {
		return
	}
	volumes := filepath.Dir(plugin)
	for _, dir := range []string{filepath.Dir(volumes), volumes, plugin} {
		if os.Mkdir(dir, 0o750) != nil {
			return
		}
	}
}

// VolumeDirs lists the volumes that have a directory, or a link to a device, by
// names alone.
func VolumeDirs(rootDir string) ([]Key, error) {
	var keys []Key
	var errs []error
	list := func(dir string) []fs.DirEntry {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		return entries
	}
	for _, pod := range list(PodsDir(rootDir)) {
		for _, kind := range []string{"volumes", "volumeDevices"} {
			volumes := filepath.Join(PodsDir(rootDir), pod.Name(), kind)
			for _, plugin := range list(volumes) {
				for _, name := range list(filepath.Join(volumes, plugin.Name())) {
					if strings.HasPrefix(name.Name(), layout.DeletingPrefix) {
						continue // the rest of a volume that still has its record
					}
					keys = append(keys, Key{types.UID(pod.Name()), layout.UnescapeQualifiedName(plugin.Name()), name.Name()})
				}
			}
		}
	}
	return keys, errors.Join(errs...)
}

// IsGone reports whether nothing has this name. It does not touch the file
// itself, whose server may not answer.
func IsGone(path string) (bool, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == filepath.Base(path) }), nil
}

// KeyOfPath returns the volume whose place a path below pods/ is; false: it is no
// volume's place, and the key has the pod alone.
func KeyOfPath(rootDir, path string) (Key, bool) {
	rest, _ := pathin.Cut(PodsDir(rootDir), path)
	parts := strings.Split(rest, string(filepath.Separator))
	if len(parts) != 4 || parts[1] != "volumes" {
		return Key{PodUID: types.UID(parts[0])}, false
	}
	return Key{types.UID(parts[0]), layout.UnescapeQualifiedName(parts[2]), parts[3]}, true
}

// FoundAt returns the kind of file at a volume's place; empty: nothing that matters. A
// mount there is not touched, since its server may not answer.
func FoundAt(host *volume.Host, key Key) (string, error) {
	dir := host.GetPodVolumeDir(key.PodUID, key.Plugin, key.Spec)
	siblings, err := os.ReadDir(filepath.Dir(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(siblings, func(e fs.DirEntry) bool { return e.Name() == key.Spec })
	if i < 0 {
		return "", nil
	}
	mounts := table.Of(host.Mounter)
	switch _, mounted, err := mounts.At(dir); {
	case err != nil:
		return "", err
	case mounted:
		return "a mount", nil
	case !siblings[i].IsDir():
		return "a file", nil
	}
	return foundIn(dir, filepath.Join(host.GetPodPluginDir(key.PodUID, key.Plugin), key.Spec))
}

// foundIn says whether a directory has something in it, or its plugin's marks
// that it was set up beside it.
func foundIn(dir, marks string) (string, error) {
	for _, place := range []struct{ dir, found string }{{dir, "a directory with contents"}, {marks, "a directory that was set up"}} {
		switch empty, err := isEmpty(place.dir); {
		case err != nil:
			return "", err
		case !empty:
			return place.found, nil
		}
	}
	return "", nil
}

// isEmpty reports whether a directory has no entries; a missing one has none.
func isEmpty(dir string) (bool, error) {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	_, err = f.ReadDir(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// DeviceLink is the pod's link to a block volume's device.
func DeviceLink(host *volume.Host, key Key) string {
	return filepath.Join(layout.GetPodVolumeDeviceDir(host, key.PodUID, key.Plugin), key.Spec)
}

// HasDeviceLink reports whether a volume without a record is a block volume.
func HasDeviceLink(host *volume.Host, key Key) bool {
	_, err := os.Readlink(DeviceLink(host, key))
	return err == nil
}
