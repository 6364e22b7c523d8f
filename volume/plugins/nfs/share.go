package nfs

import (
	"context"
	"slices"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

const fsType = "nfs"

// share is what mounter and unmounter have in common.
type share struct {
	volume.PodVolume
	plugin *plugin
}

// GetMetrics returns those of the server's file system.
func (s *share) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	metrics, err := podmount.Metrics(ctx, s.Host.GetMounter(), &s.plugin.meter, s.GetPath())
	return metrics, s.Error("GetMetrics", err)
}

type mounter struct {
	share
	export  export
	options []string
}

// GetAttributes reports Managed false: whose files are whose is the server's
// business; supplementalGroups give a pod access.
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.readOnly()}
}

func (m *mounter) readOnly() bool { return slices.Contains(m.options, "ro") }

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

func (m *mounter) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	request := mount.Request{Source: m.export.String(), Target: dir, FSType: fsType, Options: slices.Clone(m.options)}
	_, err := m.plugin.setUp(ctx, m.export, request, m.isMounted)
	return m.Error("SetUp", err)
}

// isMounted reports whether the entry is this share. A writable mount is not
// what a read-only volume asked for.
func (m *mounter) isMounted(entry mount.Entry) bool {
	found, ok := parseTableSource(entry.Source)
	return ok && isNFS(entry) && found.same(m.export) && (entry.ReadOnly() || !m.readOnly())
}

func isNFS(entry mount.Entry) bool { return entry.FSType == "nfs" || entry.FSType == "nfs4" }

type unmounter struct{ share }

func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	return u.Error("TearDown", podmount.TearDown(ctx, u.Host.GetMounter(), dir, u.plugin.ladder()))
}
