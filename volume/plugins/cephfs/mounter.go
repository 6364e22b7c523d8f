package cephfs

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/ceph"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// share is what mounter and unmounter have in common.
type share struct {
	volume.PodVolume
	plugin *plugin
}

// GetMetrics returns the metrics of the cluster's file system, or of the directory's quota.
func (s *share) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	metrics, err := podmount.Metrics(ctx, s.Host.GetMounter(), &s.plugin.meter, s.GetPath())
	return metrics, s.Error("GetMetrics", err)
}

type mounter struct {
	share
	source    *source
	namespace string // the pod's
}

// GetAttributes reports Managed false: whose files are whose is for all nodes of the cluster.
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.source.readOnly}
}

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt looks up the monitors and the key, and mounts. A volume that is mounted stays so,
// whatever became of them since.
func (m *mounter) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	return m.Error("SetUp", m.mount(ctx, dir))
}

func (m *mounter) mount(ctx context.Context, dir string) error {
	s := m.source
	request := mount.Request{Source: s.describe(), Target: dir, FSType: fsType, Options: append(slices.Clone(s.options), "name="+s.key.User)}
	mounted, err := podmount.Mounted(m.Host.GetMounter(), request, s.isMounted)
	if err != nil || mounted {
		return err
	}
	files := ceph.Files{Dir: m.plugin.config.KeyDir, Inline: m.plugin.config.InlineKeyFiles}
	key, err := s.key.Key(ctx, m.Host, files, m.namespace)
	if err != nil {
		return err
	}
	monitors, err := ceph.Resolve(ctx, m.plugin.config.Resolver, s.monitors)
	if err != nil {
		return err
	}
	request.Source, request.Sensitive = monitors+":"+path.Clean(s.path), []string{"secret=" + key}
	if err := mount.CheckSource(request.Source); err != nil {
		return volume.NothingDone(fmt.Errorf("cephfs source: %w", err))
	}
	_, err = podmount.SetUp(ctx, m.Host.GetMounter(), request, s.isMounted)
	if errors.Is(err, unix.EHOSTUNREACH) {
		err = fmt.Errorf("no metadata server is up, or the cluster refuses the user (a refused key looks the same to the kernel: ceph auth get client.%s): %w", s.key.User, err)
	}
	return err
}

// isMounted reports whether the entry is this volume. A writable mount is not what a read-only
// volume asked for.
func (s *source) isMounted(e mount.Entry) bool {
	addresses, at, ok := splitSource(e.Source)
	return ok && e.FSType == fsType && at == path.Clean(s.path) && ceph.Reaches(s.monitors, addresses) && (e.ReadOnly() || !s.readOnly)
}

type unmounter struct{ share }

func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

// TearDownAt forces the mount of a cluster that is silent for a minute, and detaches it after two.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	return u.Error("TearDown", podmount.TearDown(ctx, u.Host.GetMounter(), dir, mount.UnmountOptions{ForceAfter: time.Minute, LazyAfter: 2 * time.Minute}))
}
