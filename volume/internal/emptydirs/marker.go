package emptydirs

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

const (
	// PluginName names the plugin of emptyDir volumes, whose marker all of them
	// have.
	PluginName    = "kubernetes.io/empty-dir"
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
	return marker{filepath.Join(v.Host.GetPodPluginDir(v.PodUID, PluginName), volumeName), name}
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
	if _, held := errors.AsType[*podmount.NotEmptyError](err); held && m.hasSiblings() {
		return nil
	}
	return err
}

// hasSiblings reports whether the volume is set up at another directory too.
func (m marker) hasSiblings() bool {
	entries, err := os.ReadDir(m.dir)
	return err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return strings.HasPrefix(e.Name(), readyName)
	})
}
