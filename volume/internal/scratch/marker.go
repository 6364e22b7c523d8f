package scratch

import (
	"errors"
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

// marker is the directory that holds one volume's ready file.
type marker string

func markerOf(v volume.PodVolume, wrapped bool) marker {
	name := v.Name
	if wrapped {
		name = wrappedPrefix + name
	}
	return marker(filepath.Join(v.Host.GetPodPluginDir(v.PodUID, pluginName), name))
}

func (m marker) ready() string { return filepath.Join(string(m), readyName) }

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
	if _, err := podmount.MakeDir(string(m), 0o750); err != nil {
		return err
	}
	return os.WriteFile(m.ready(), nil, 0o640)
}

// clear removes the marker and its directory; missing ones are success.
func (m marker) clear() error {
	err := eintr.Do(func() error { return unix.Unlink(m.ready()) })
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
		return &fs.PathError{Op: "unlink", Path: m.ready(), Err: err}
	}
	return podmount.RemoveDir(string(m))
}
