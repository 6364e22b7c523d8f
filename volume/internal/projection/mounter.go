package projection

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/emptydirs"
	"github.com/podvol/podvol/volume/internal/payload"
)

const (
	// dirMode is the volume's own: only podvol writes to it.
	dirMode fs.FileMode = 0o755
	// published is there once a first version is.
	published = "..data"
	// undoTime bounds the removal of what a failed set-up made, which goes on
	// when the caller has given up.
	undoTime = 10 * time.Second
)

// place is what mounter and unmounter have in common.
type place struct {
	volume.PodVolume
	plugin *Plugin
}

// GetMetrics walks the volume.
func (p *place) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	metrics, err := p.plugin.meter.Tree(ctx, p.GetPath())
	return metrics, p.Error("GetMetrics", err)
}

// remove takes the volume away with all its files. Its remembered state goes
// first, so that a removal that fails half-way is not mistaken for an unchanged
// volume later.
func (p *place) remove(ctx context.Context, dir string) error {
	p.plugin.publisher.Forget(dir)
	return emptydirs.TearDown(ctx, p.PodVolume, dir, true, nil)
}

type mounter struct {
	place
	projection  payload.Projection
	pod         *v1.Pod
	mountPoints []string

	mu           sync.Mutex
	refreshAfter time.Time
}

var _ volume.Refresher = (*mounter)(nil)

func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: true, Managed: true, SELinuxRelabel: true}
}

// RefreshAfter is when the first token or certificate of the volume is due, as of the last
// SetUp that succeeded.
func (m *mounter) RefreshAfter() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refreshAfter
}

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt sets the volume up, or brings it up to date. It touches nothing
// before it has all of the contents. A first set-up that fails leaves nothing;
// an update that fails leaves the previous files.
func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	return m.Error("SetUp", m.setUp(ctx, dir, args))
}

func (m *mounter) setUp(ctx context.Context, dir string, args volume.MounterArgs) error {
	contents, err := m.projection.Collect(ctx, m.Host, m.pod, args, &m.plugin.issued, reader(dir))
	if err != nil {
		if isPublished(dir) {
			return err
		}
		return volume.NothingDone(err)
	}
	err = emptydirs.SetUp(ctx, m.PodVolume, dir, emptydirs.Options{
		Medium: m.plugin.kind.Medium, SizeBytes: m.size(ctx, dir), Mode: new(dirMode), GID: args.FsGroup, Wrapped: true})
	if err != nil {
		return err
	}
	update := isPublished(dir)
	if err := m.publish(ctx, dir, contents); err != nil {
		if update {
			return err
		}
		return m.undo(ctx, dir, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refreshAfter = contents.RefreshAfter
	return nil
}

// maxPublished bounds the files that are read back, far above any certificate's.
const maxPublished = 1 << 20

// reader reads the volume's files as containers see them.
func reader(dir string) func(path string) ([]byte, error) {
	return func(path string) ([]byte, error) {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, err
		}
		defer root.Close()
		file, err := root.Open(filepath.Join(published, path))
		if err != nil {
			return nil, err
		}
		defer file.Close()
		return io.ReadAll(io.LimitReader(file, maxPublished))
	}
}

// size limits a new volume in memory as any other one there; 0 leaves it to the
// kernel. That the node's size cannot be told keeps no pod from its token.
func (m *mounter) size(ctx context.Context, dir string) int64 {
	if m.plugin.kind.Medium != v1.StorageMediumMemory || isPublished(dir) {
		return 0
	}
	size, err := emptydirs.MemorySize(ctx, m.Host, m.pod)
	if err != nil {
		return 0
	}
	return size
}

func (m *mounter) publish(ctx context.Context, dir string, contents payload.Files) error {
	if _, err := m.plugin.publisher.Publish(ctx, dir, contents.ByPath); err != nil {
		return err
	}
	return makeMountPoints(dir, m.mountPoints, contents.ByPath)
}

// undo removes a volume that was never complete.
func (m *mounter) undo(ctx context.Context, dir string, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if undoErr := m.remove(ctx, dir); undoErr != nil {
		return errors.Join(err, fmt.Errorf("cleaning up after it failed too: %w", undoErr))
	}
	return volume.NothingDone(err)
}

// isPublished reports whether dir has files of a set-up that succeeded. When
// that cannot be told it says yes, since no volume in use may be removed.
func isPublished(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, published))
	return !errors.Is(err, fs.ErrNotExist)
}

type unmounter struct{ place }

func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

// TearDownAt removes the volume with all its files, and forgets the pod's
// tokens and the volume's certificates; another volume of the pod that is still in use
// asks for new tokens.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	u.plugin.issued.Drop(u.PodUID, u.Name)
	if forgetter, err := volume.Role[volume.TokenForgetter](u.Host); err == nil {
		forgetter.ForgetTokens(u.PodUID)
	}
	return u.Error("TearDown", u.remove(ctx, dir))
}
