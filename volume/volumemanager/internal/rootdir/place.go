package rootdir

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/layout"
)

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
