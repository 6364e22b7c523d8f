package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/diskmount"
	"github.com/podvol/podvol/volume/internal/hostfiles"
	"github.com/podvol/podvol/volume/internal/podmount"
)

type mounter struct {
	diskmount.Volume
	plugin  *plugin
	pod     *v1.Pod
	pv      *v1.PersistentVolume // only read
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

func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	return m.Error("SetUp", m.bind(ctx, dir, args))
}

func (m *mounter) bind(ctx context.Context, dir string, args volume.MounterArgs) error {
	request := mount.Request{Source: m.path, Target: dir, Options: append([]string{"bind"}, m.options...)}
	// The table cannot always tell the path of a bound directory, so any mount
	// at the pod's own directory for this volume is taken for ours.
	same := func(entry mount.Entry) bool { return entry.ReadOnly() || !m.readOnly() }
	mounted, err := podmount.Mounted(m.Host.GetMounter(), request, same)
	if err != nil || mounted {
		return err
	}
	isDevice, err := m.checkSource(ctx)
	if err != nil {
		return volume.NothingDone(err)
	}
	if err := m.plugin.checkDisk(ctx, m.pv, isDevice); err != nil {
		return volume.NothingDone(err)
	}
	if isDevice {
		if request, err = m.bindOfDevice(dir); err != nil {
			return volume.NothingDone(err)
		}
	}
	done, err := m.own(ctx, request, args)
	if err != nil {
		return volume.NothingDone(err) // that tearing down could undo
	}
	defer done()
	return m.setUp(ctx, request, same)
}

// bindOfDevice binds what MountDevice has mounted, with its options; only
// read-only is the pod's own.
func (m *mounter) bindOfDevice(dir string) (mount.Request, error) {
	request := mount.Request{Source: m.plugin.deviceMountPath(m.Name), Target: dir, Options: []string{"bind"}}
	if m.readOnly() {
		request.Options = append(request.Options, "ro")
	}
	mounts := table.Of(m.Host.GetMounter())
	_, mounted, err := mounts.At(request.Source)
	if err == nil && !mounted {
		err = fmt.Errorf("local.path %q is a block device, and its file system must be mounted at %s first (MountDevice): %w", m.path, request.Source, mount.ErrNotMounted)
	}
	return request, err
}

// checkSource explains what the kernel would only call EINVAL or ENOTDIR.
func (m *mounter) checkSource(ctx context.Context) (isDevice bool, err error) {
	info, err := m.plugin.stat(ctx, m.path)
	switch {
	case err != nil:
		return false, err
	case info.Mode().Type() == fs.ModeDevice:
		return true, nil
	case !info.IsDir():
		return false, volume.Invalid("local.path", "%q is a %s, a directory or a block device is needed", m.path, hostfiles.Kind(info.Mode()))
	}
	return false, nil
}

// stat looks at a path of the node.
func (p *plugin) stat(ctx context.Context, path string) (fs.FileInfo, error) {
	info, err := p.files.Of(p.Host).Stat(ctx, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("local.path %q does not exist on this node; create the directory or mount its disk there: %w", path, err)
	case err != nil:
		return nil, fmt.Errorf("local.path %q: %w", path, err)
	}
	return info, nil
}
