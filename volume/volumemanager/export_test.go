package volumemanager

import (
	"os"
	"time"

	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// BesideNoKubelet returns the configuration of a node without a kubelet, which
// another test may run on this machine.
func (c Config) BesideNoKubelet() Config {
	c.kubeletDir = "/nowhere"
	return c
}

// RemoveDirsBy has the directories around volumes removed by f.
func (m *Manager) RemoveDirsBy(f func(path string) error) { m.podDirs.Rmdir = f }

// CloseRecords lets all that is to be recorded or noted from now on fail.
func (m *Manager) CloseRecords() error { return m.records.Close() }

// DelaySyncs has the disk take its time to sync the directories around what was
// removed.
func (m *Manager) DelaySyncs(d time.Duration) {
	m.records.SyncDirsBy(func(dir *os.File, sync func(*os.File) error) error {
		time.Sleep(d)
		return sync(dir)
	})
}

// PodsDir and RecordsPath are where a manager has its pods and records.
var PodsDir, RecordsPath = rootdir.PodsDir, rootdir.RecordsPath
