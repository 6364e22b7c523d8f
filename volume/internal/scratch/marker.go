package scratch

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

const (
	pluginName    = "kubernetes.io/empty-dir"
	wrappedPrefix = "wrapped_"
	readyName     = "ready"
)

// marker is the file that says that a volume was set up at one directory.
type marker struct{ dir, name string }

// markerOf returns the kubelet's marker for the volume's own directory. At
// another one the volume has a marker of its own beside it.
func markerOf(v volume.PodVolume, at string, wrapped bool) marker {
	volumeName, name := v.Name, readyName
	if wrapped {
		volumeName = wrappedPrefix + volumeName
	}
	if at = filepath.Clean(at); at != filepath.Clean(v.GetPath()) {
		name = fmt.Sprintf("%s-%x", readyName, sha256.Sum256([]byte(at)))
	}
	return marker{filepath.Join(v.Host.GetPodPluginDir(v.PodUID, pluginName), volumeName), name}
}

func (m marker) ready() string { return filepath.Join(m.dir, m.name) }

// isSet reports whether set-up was once completed.
func (m marker) isSet() (bool, error) {
	_, err := os.Lstat(m.ready())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// set is not synced: a marker that a crash loses is written again.
func (m marker) set() error {
	if _, err := podmount.MakeDir(m.dir, 0o750); err != nil {
		return err
	}
	return os.WriteFile(m.ready(), nil, 0o640)
}

// clear removes the marker, and its directory with the last of the volume's;
// missing ones are success.
func (m marker) clear() error {
	err := eintr.Do(func() error { return unix.Unlink(m.ready()) })
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		return &fs.PathError{Op: "unlink", Path: m.ready(), Err: err}
	}
	err = podmount.RemoveDir(m.dir)
	if others, _ := filepath.Glob(filepath.Join(m.dir, readyName+"*")); len(others) > 0 {
		return nil
	}
	return err
}
