package emptydir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/projectquota"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/emptydirs"
)

// quotas are the limits of volumes on disk, and why some have none.
type quotas struct {
	kernel projectquota.Kernel

	mu      sync.Mutex
	reasons map[volumeKey]error
}

type volumeKey struct {
	pod  types.UID
	name string
}

func (d *directory) key() volumeKey { return volumeKey{d.PodUID, d.Name} }

// note keeps the reason why a volume has no limit; nil: it has, or is gone.
func (q *quotas) note(key volumeKey, reason error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if reason == nil {
		delete(q.reasons, key)
		return
	}
	if q.reasons == nil {
		q.reasons = map[volumeKey]error{}
	}
	q.reasons[key] = reason
}

func (q *quotas) unenforced(key volumeKey) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.reasons[key]
}

// projects are the node's, recorded beside what else plugins keep.
func (p *plugin) projects() projectquota.Projects {
	return projectquota.Projects{Records: filepath.Join(p.Host.GetPluginDir(PluginName), "projects"), Kernel: p.quotas.kernel}
}

// limitOnDisk returns what limits the directory of a volume on disk; nil: nothing is to.
// What cannot be limited is set up all the same, and noted.
func (m *mounter) limitOnDisk(args volume.MounterArgs) func(dir string) error {
	limit := emptydirs.Least(m.limit, desired(args))
	if m.medium != v1.StorageMediumDefault || limit == noLimit {
		return nil
	}
	return func(dir string) error {
		err := m.plugin.projects().Limit(filepath.Clean(dir), limit)
		reason, without := errors.AsType[*projectquota.UnenforcedError](err)
		if !without {
			m.plugin.quotas.note(m.key(), nil)
			return err
		}
		m.plugin.quotas.note(m.key(), reason)
		return nil
	}
}

// withoutProject adds to the error of a set-up that has removed its directory again
// what kept its project from being released.
func (m *mounter) withoutProject(dir string, err error) error {
	if err == nil {
		return nil
	}
	if _, there := os.Lstat(dir); !errors.Is(there, fs.ErrNotExist) {
		return err
	}
	if kept := m.plugin.projects().Forget(filepath.Clean(dir)); kept != nil {
		return errors.Join(err, kept)
	}
	return err
}
