package rootdir

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/layout"
)

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
