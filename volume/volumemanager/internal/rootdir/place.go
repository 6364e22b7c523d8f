package rootdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/pathin"
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
