package volumemanager

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// unrecorded says that a volume was not set up because there is one at its place that
// podvol has no record of: another agent may have made it, such as a kubelet that runs
// the same pod, and podvol tears down some day whatever it sets up, with its data.
// Nothing was done.
func unrecorded(path, found string) error {
	return &volume.Failure{
		Cause: ErrNoRecord, Subject: path,
		What: fmt.Sprintf("at %s there is %s, and no record says that podvol made it; it is left alone", path, found),
		Next: "if another agent uses this root directory, choose one of your own; if none does, have it adopted first: Config.Adopt, or podvol fsck --repair --adopt",
	}
}

// refuseUnrecorded fails where something is at the place of a new volume that
// could be lost with it. Records come before directories and go after them, so
// whatever crashed, podvol's own have one; a file of records that was lost or
// cut is no reason to take somebody else's data for its own. An empty directory
// without a mount is nobody's loss.
func (m *Manager) refuseUnrecorded(key rootdir.Key) error {
	dir := m.host.GetPodVolumeDir(key.PodUID, key.Plugin, key.Spec)
	if m.hasDeviceLink(key) {
		return unrecorded(deviceLink(m.host, key), "a link to a device")
	}
	found, err := m.foundAt(key, dir)
	if err != nil || found == "" {
		return err
	}
	return unrecorded(dir, found)
}

// foundAt says what is at a volume's place; empty: nothing that matters. What is
// mounted there is not touched, since its server may not answer.
func (m *Manager) foundAt(key rootdir.Key, dir string) (string, error) {
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
	mounts := table.Of(m.host.Mounter)
	switch _, mounted, err := mounts.At(dir); {
	case err != nil:
		return "", err
	case mounted:
		return "a mount", nil
	case !siblings[i].IsDir():
		return "a file", nil
	}
	return foundIn(dir, filepath.Join(m.host.GetPodPluginDir(key.PodUID, key.Plugin), key.Spec))
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

// isFound reports whether the volume was found under the name of its
// spec, which need not be the name that the pod gives it.
func (a actualVolume) isFound() bool {
	return a.unreadable != nil || a.record != nil && a.record.Rebuilt
}

// putAside gives what was found on disk an entry of its own where the pod's volume
// of that name turns out to be another one. The caller holds the lock.
func (m *Manager) putAside(s *podVolume) {
	own := &podVolume{pod: s.pod, names: []string{s.actual.key.Spec}, since: s.since, actual: s.actual, state: s.state}
	if u := own.actual.unreadable; u != nil {
		own.state, own.err = StateFailed, u
	}
	s.pod.volumes = append(s.pod.volumes, own)
	m.passDevice(s, own, s.actual.device)
	s.actual, s.state, s.since = actualVolume{}, StatePending, time.Now()
	m.byClaim.note(s)
	m.byClaim.note(own)
}
