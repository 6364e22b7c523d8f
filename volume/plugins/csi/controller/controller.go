// Package controller is the plugin kubernetes.io/csi for claims without a cluster. By the
// Controller service of drivers it does the work of external-provisioner, external-attacher and
// external-resizer. Package csi is the node's plugin beside it.
//
//   - StorageClasses name a driver as their provisioner, and it makes and deletes the volumes
//     of claims.
//   - Parameters, secrets with their templates, topology and the PersistentVolume are as
//     external-provisioner has them.
//   - The volume's name comes from the names of the PersistentVolume and the node. The claims'
//     controller has noted the former before (ProvisioningFinalizer of package
//     persistentvolume). So a new process asks for the same volume after a crash, and no volume
//     is left of a claim that has gone meanwhile.
//   - A claim whose data source is another claim gets a copy, of drivers that clone. Snapshots
//     are no objects here: have the driver's own tools make a volume of one, declare its
//     PersistentVolume, and name that in the claim's volumeName.
//   - A volume with traces on the node is neither deleted nor detached.
//   - A node attaches what it mounts by [ForNode] and package selfattach.
//   - The claims' controller grows volumes, and gives them other attributes
//     (volume.SpecExpander, volume.ModifiableVolumePlugin).
//
// Errors match the causes of package csi, and say whether anything may have been done.
package controller

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
	"github.com/podvol/podvol/volume/volumesource"
)

// Config configures the plugin. New keeps none of its maps.
type Config struct {
	// Drivers are the sockets of drivers, by the drivers' names. A socket is an absolute path.
	Drivers map[string]string
	// RegistryDir is where other drivers register themselves. They are looked for when one is
	// needed that is not known. Empty: there are none.
	RegistryDir string
	// CallTimeout bounds each call of a driver; 0: two minutes.
	CallTimeout time.Duration
	// StagedDir is that of the node's plugins (csi.Config): what is staged below another root
	// directory of this machine is not detached, and not staged while it is being detached.
	// Empty: the drivers' volumes are this root directory's alone.
	StagedDir string
	// Dial connects to a driver's socket; nil: by a Unix socket. It may be called
	// concurrently.
	Dial func(ctx context.Context, socket string) (net.Conn, error)
	// Logger gets a line for a driver that goes; nil: none.
	Logger *slog.Logger
}

// Plugin is the plugin kubernetes.io/csi for claims. It is safe for concurrent use.
// [Plugin.Close] ends its connections.
type Plugin struct {
	pluginbase.Kind[csivolume.Source]
	registryDir string
	drivers     *drivers.Set
	disk        csivolume.Disk // set by Init
	stagedDir   string
}

var (
	_ volume.NamedProvisionerPlugin  = (*Plugin)(nil)
	_ volume.CloningVolumePlugin     = (*Plugin)(nil)
	_ volume.DeletableVolumePlugin   = (*Plugin)(nil)
	_ volume.SpecAttacher            = (*Plugin)(nil)
	_ volume.SpecExpander            = (*Plugin)(nil)
	_ volume.ModifiableVolumePlugin  = (*Plugin)(nil)
	_ volume.PersistentVolumePlugin  = (*Plugin)(nil)
	_ volume.MountOptionVolumePlugin = (*Plugin)(nil)
	_ volume.PodNamedVolumePlugin    = (*Plugin)(nil)
	_ volumesource.Describer         = (*Plugin)(nil)
)

// New returns the plugin. It does no I/O. It refuses names that no driver can have, and paths
// that are not absolute, with an *[volume.InvalidSpecError].
func New(c Config) (*Plugin, error) {
	programs, err := drivers.Config{Sockets: c.Drivers, RegistryDir: c.RegistryDir, CallTimeout: c.CallTimeout, Dial: c.Dial, Logger: c.Logger}.Complete()
	if err != nil {
		return nil, err
	}
	if c.StagedDir != "" && !filepath.IsAbs(c.StagedDir) {
		return nil, volume.Invalid("StagedDir", "must be an absolute path, not %q", c.StagedDir)
	}
	return &Plugin{registryDir: c.RegistryDir, stagedDir: c.StagedDir, drivers: drivers.NewSet(programs), Kind: csivolume.Kind()}, nil
}

// Init implements [volume.VolumePlugin].
func (p *Plugin) Init(host volume.VolumeHost) error {
	p.disk = csivolume.Disk{Host: host}
	return p.Kind.Init(host)
}

// Close ends the connections. Calls under way end with an uncertain error. It may be
// called twice.
func (p *Plugin) Close() error { return p.drivers.Close() }

// DriverStatus has the facts about a driver that need no call. It is package csi's.
type DriverStatus = drivers.Status

// Drivers returns the status of all drivers, by name. It does no I/O.
func (p *Plugin) Drivers() []DriverStatus { return p.drivers.Status() }

// GetVolumeName is that of a node's plugin.
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	return p.GetPodVolumeName(spec, "")
}

// GetPodVolumeName implements [volume.PodNamedVolumePlugin].
func (p *Plugin) GetPodVolumeName(spec *volume.Spec, pod types.UID) (string, error) {
	s, err := csivolume.Checked(&p.Kind, spec)
	if err != nil {
		return "", err
	}
	return s.UniqueName(pod, spec.Name()), nil
}

// GetAccessModes returns all modes: which of them a volume has is for its driver to say.
func (p *Plugin) GetAccessModes() []v1.PersistentVolumeAccessMode { return csivolume.AccessModes() }

// SupportsMountOption is true: drivers get the options.
func (p *Plugin) SupportsMountOption() bool { return true }

// DescribeSource returns the driver's name and the handle.
func (p *Plugin) DescribeSource(spec *volume.Spec) string {
	s, err := p.Source(spec)
	if err != nil {
		return ""
	}
	return s.Describe()
}

// NewMounter is refused: a node's plugin mounts.
func (p *Plugin) NewMounter(spec *volume.Spec, _ *v1.Pod) (volume.Mounter, error) {
	return nil, csivolume.Failed("NewMounter", spec.Name(), errNoNode)
}

// NewUnmounter is refused: a node's plugin unmounts.
func (p *Plugin) NewUnmounter(volumeName string, _ types.UID) (volume.Unmounter, error) {
	return nil, csivolume.Failed("NewUnmounter", volumeName, errNoNode)
}

// ConstructVolumeSpec is refused: a node's plugin rebuilds specs.
func (p *Plugin) ConstructVolumeSpec(_ context.Context, volumeName, _ string) (volume.ReconstructedVolume, error) {
	return volume.ReconstructedVolume{}, csivolume.Failed("ConstructVolumeSpec", volumeName, errNoNode)
}

var errNoNode = volume.NothingDone(errors.New("this plugin makes and deletes volumes for claims, and mounts none"))

// service returns the Controller service of a driver. Errors have done nothing.
func (p *Plugin) service(ctx context.Context, name string) (*drivers.Driver, *drivers.Controls, error) {
	d, err := p.drivers.Get(name)
	if errors.Is(err, drivers.ErrNotRegistered) && p.registryDir != "" {
		if _, lookErr := p.drivers.Discover(ctx); lookErr != nil {
			return nil, nil, volume.NothingDone(errors.Join(err, lookErr))
		}
		d, err = p.drivers.Get(name)
	}
	if err != nil {
		return nil, nil, err
	}
	s, err := p.drivers.Session(ctx, d)
	if err != nil {
		if !d.Fixed { // it may have registered anew, at another socket
			p.drivers.Deregister(d)
		}
		return nil, nil, err
	}
	c, err := s.Controls(ctx)
	return d, c, volume.NothingDone(err)
}

// control makes a call of the Controller service. A refusal has done nothing.
func (p *Plugin) control(ctx context.Context, c drivers.Call, send func(context.Context, *drivers.Controls) error) error {
	err := p.drivers.Do(ctx, c, func(ctx context.Context, s *drivers.Session) error {
		controls, err := s.Controls(ctx)
		if err != nil {
			return status.Error(codes.Unavailable, err.Error()) // after a new connection
		}
		return send(ctx, controls)
	})
	if drivers.IsRefusal(err) {
		return volume.NothingDone(err)
	}
	return err
}

// controlMode is an access mode for the Controller service.
func controlMode(mode v1.PersistentVolumeAccessMode, c *drivers.Controls) (csi.VolumeCapability_AccessMode_Mode, error) {
	return drivers.AccessMode(mode, c.Has(csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER))
}

// accessKind completes a capability by what pods see: a device or a file system.
func accessKind(c *csi.VolumeCapability, block bool, fsType string, flags []string) *csi.VolumeCapability {
	if block {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags}}
	}
	return c
}
