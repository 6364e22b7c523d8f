package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/hostfiles"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// bound is what mounter and unmounter have in common.
type bound struct {
	volume.PodVolume
	plugin *plugin
}

// GetMetrics returns those of the file system that the directory is on.
func (b *bound) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	metrics, err := podmount.Metrics(ctx, b.Host.GetMounter(), &b.plugin.meter, b.GetPath())
	return metrics, b.Error("GetMetrics", err)
}

type mounter struct {
	bound
	path    string
	options []string
}

// GetAttributes reports Managed unless the volume is read-only.
func (m *mounter) GetAttributes() volume.Attributes {
	readOnly := m.readOnly()
	return volume.Attributes{ReadOnly: readOnly, Managed: !readOnly, SELinuxRelabel: true}
}

func (m *mounter) readOnly() bool { return slices.Contains(m.options, "ro") }

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

func (m *mounter) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	return m.Error("SetUp", m.bind(ctx, dir))
}

func (m *mounter) bind(ctx context.Context, dir string) error {
	request := mount.Request{Source: m.path, Target: dir, Options: append([]string{"bind"}, m.options...)}
	// The table cannot always tell the path of a bound directory, so any mount
	// at the pod's own directory for this volume is taken for ours.
	same := func(entry mount.Entry) bool { return entry.ReadOnly() || !m.readOnly() }
	mounted, err := podmount.Mounted(m.Host.GetMounter(), request, same)
	if err != nil || mounted {
		return err
	}
	if err := m.checkSource(ctx); err != nil {
		return volume.NothingDone(err)
	}
	_, err = podmount.SetUp(ctx, m.Host.GetMounter(), request, same)
	return err
}

// checkSource explains what the kernel would only call EINVAL or ENOTDIR.
func (m *mounter) checkSource(ctx context.Context) error {
	info, err := m.plugin.files.Of(m.Host).Stat(ctx, m.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("local.path %q does not exist on this node; create the directory or mount its disk there: %w", m.path, err)
	case err != nil:
		return fmt.Errorf("local.path %q: %w", m.path, err)
	case info.Mode().Type() == fs.ModeDevice:
		return &volume.UnsupportedError{
			Type:        "local",
			Reason:      fmt.Sprintf("local.path %q is a block device, and block volumes are not supported yet", m.path),
			Replacement: "make a file system on the device, mount it, and give the mount point as local.path",
		}
	case !info.IsDir():
		return volume.Invalid("local.path", "%q is a %s, a directory is needed", m.path, hostfiles.Kind(info.Mode()))
	}
	return nil
}

type unmounter struct{ bound }

func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

// TearDownAt never forces and never detaches: what is bound may be on a block
// device, whose file system would live on unseen.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	return u.Error("TearDown", podmount.TearDown(ctx, u.Host.GetMounter(), dir, mount.UnmountOptions{}))
}
