package volumemanager

import (
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// isMountPoint reports whether something is mounted just at a path, by the mount
// table. Nothing is at the empty path.
func (m *Manager) isMountPoint(path string) (bool, error) {
	if path == "" {
		return false, nil
	}
	mounts := table.Of(m.host.Mounter)
	_, mounted, err := mounts.At(path)
	return mounted, err
}

// mountedBelow reports whether a volume's path is a mount point of its own. A
// path outside the root, a hostPath's, is somebody else's matter.
func (m *Manager) mountedBelow(path string) (bool, error) {
	if !pathin.Strictly(rootdir.PodsDir(m.host.RootDir), path) {
		return false, nil
	}
	return m.isMountPoint(path)
}
