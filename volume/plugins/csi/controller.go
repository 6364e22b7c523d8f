package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumesource"
)

// Controller is the plugin kubernetes.io/csi for claims where there is no cluster: it has
// drivers make and delete volumes by their Controller service. A node has a [Plugin] beside
// it. It is safe for concurrent use. [Controller.Close] ends its connections.
type Controller struct {
	// node finds drivers and calls them, and knows what a node has on disk.
	node *Plugin
}

var (
	_ volume.NamedProvisionerPlugin  = (*Controller)(nil)
	_ volume.DeletableVolumePlugin   = (*Controller)(nil)
	_ volume.PersistentVolumePlugin  = (*Controller)(nil)
	_ volume.MountOptionVolumePlugin = (*Controller)(nil)
	_ volumesource.Describer         = (*Controller)(nil)
)

// NewController returns the plugin. It does no I/O. Of the configuration it takes the
// drivers' sockets, RegistryDir, CallTimeout and Logger. Drivers that register themselves
// are looked for when one is needed that is not known, if RegistryDir is given. The errors
// are those of [New].
func NewController(c Config) (*Controller, error) {
	node, err := New(c)
	if err != nil {
		return nil, err
	}
	return &Controller{node}, nil
}

// Init implements [volume.VolumePlugin].
func (p *Controller) Init(host volume.VolumeHost) error { return p.node.Init(host) }

// InitHost lets a [volume.VolumePluginMgr] find that another one has the plugin, too.
func (p *Controller) InitHost() volume.VolumeHost { return p.node.InitHost() }

// Close is as that of [Plugin].
func (p *Controller) Close() error { return p.node.Close() }

// GetPluginName returns [PluginName].
func (p *Controller) GetPluginName() string { return PluginName }

// CanSupport implements [volume.VolumePlugin].
func (p *Controller) CanSupport(spec *volume.Spec) bool { return p.node.CanSupport(spec) }

// GetVolumeName is that of [Plugin].
func (p *Controller) GetVolumeName(spec *volume.Spec) (string, error) {
	return p.node.GetVolumeName(spec)
}

// GetPodVolumeName implements [volume.PodNamedVolumePlugin].
func (p *Controller) GetPodVolumeName(spec *volume.Spec, pod types.UID) (string, error) {
	return p.node.GetPodVolumeName(spec, pod)
}

// GetAccessModes is that of [Plugin].
func (p *Controller) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return p.node.GetAccessModes()
}

// SupportsMountOption is true: drivers get the options.
func (p *Controller) SupportsMountOption() bool { return true }

// DescribeSource is that of [Plugin].
func (p *Controller) DescribeSource(spec *volume.Spec) string { return p.node.DescribeSource(spec) }

// NewMounter is refused: a node's [Plugin] mounts.
func (p *Controller) NewMounter(spec *volume.Spec, _ *v1.Pod) (volume.Mounter, error) {
	return nil, failed("NewMounter", spec.Name(), errNoNode)
}

// NewUnmounter is refused: a node's [Plugin] unmounts.
func (p *Controller) NewUnmounter(volumeName string, _ types.UID) (volume.Unmounter, error) {
	return nil, failed("NewUnmounter", volumeName, errNoNode)
}

// ConstructVolumeSpec is refused: a node's [Plugin] rebuilds specs.
func (p *Controller) ConstructVolumeSpec(_ context.Context, volumeName, _ string) (volume.ReconstructedVolume, error) {
	return volume.ReconstructedVolume{}, failed("ConstructVolumeSpec", volumeName, errNoNode)
}

var errNoNode = volume.NothingDone(errors.New("this plugin makes and deletes volumes for claims, and mounts none"))

// controls is what a driver's Controller service can do. It is asked once for a session.
type controls struct {
	csi.ControllerClient
	can        []csi.ControllerServiceCapability_RPC_Type
	service    bool // there is one
	topologies bool // volumes are reachable from some nodes only
}

func (c *controls) has(rpc csi.ControllerServiceCapability_RPC_Type) bool {
	return slices.Contains(c.can, rpc)
}

// service returns the Controller service of a driver. Errors have done nothing.
func (p *Controller) service(ctx context.Context, name string) (*driver, *controls, error) {
	d, err := p.node.drivers.get(name)
	if errors.Is(err, ErrNotRegistered) && p.node.config.RegistryDir != "" {
		if _, lookErr := p.node.Discover(ctx); lookErr != nil {
			return nil, nil, volume.NothingDone(errors.Join(err, lookErr))
		}
		d, err = p.node.drivers.get(name)
	}
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.node.config.CallTimeout)
	defer cancel()
	s, err := d.ready(ctx)
	if err != nil {
		if !d.fixed { // it may have registered anew, at another socket
			p.node.drivers.deregister(d)
		}
		return nil, nil, err
	}
	c, err := s.controls(ctx, name)
	return d, c, volume.NothingDone(err)
}

// controls asks what the Controller service can do. Of several callers one asks.
func (s *session) controls(ctx context.Context, driver string) (*controls, error) {
	select {
	case s.asking <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.asking }()
	if s.known != nil {
		return s.known, nil
	}
	c := &controls{ControllerClient: csi.NewControllerClient(s.conn)}
	plugin, err := csi.NewIdentityClient(s.conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return nil, failedCall("GetPluginCapabilities", driver, "", err, nil)
	}
	for _, one := range plugin.GetCapabilities() {
		switch one.GetService().GetType() {
		case csi.PluginCapability_Service_CONTROLLER_SERVICE:
			c.service = true
		case csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS:
			c.topologies = true
		}
	}
	if c.service {
		can, err := c.ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
		if err != nil {
			return nil, failedCall("ControllerGetCapabilities", driver, "", err, nil)
		}
		for _, one := range can.GetCapabilities() {
			c.can = append(c.can, one.GetRpc().GetType())
		}
	}
	s.known = c
	return c, nil
}

// needs refuses a call that the driver does not offer.
func (c *controls) needs(rpc csi.ControllerServiceCapability_RPC_Type, driver string) error {
	if c.has(rpc) {
		return nil
	}
	return volume.NothingDone(&volume.Failure{Cause: ErrNoController, Subject: driver, What: fmt.Sprintf("driver %s does not offer %v at its socket", driver, rpc),
		Next: "give the socket of its controller, if it is another one, or make the volume by the means of its storage"})
}

// control makes a call of the Controller service. A refusal has done nothing.
func (p *Controller) control(ctx context.Context, c call, send func(context.Context, *controls) error) error {
	err := p.node.do(ctx, c, func(ctx context.Context, s *session) error {
		controls, err := s.controls(ctx, c.driver.name)
		if err != nil {
			return status.Error(codes.Unavailable, err.Error()) // after a new connection
		}
		return send(ctx, controls)
	})
	if isRefusal(err) {
		return volume.NothingDone(err)
	}
	return err
}

// controlMode is an access mode for the Controller service.
func controlMode(mode v1.PersistentVolumeAccessMode, c *controls) (csi.VolumeCapability_AccessMode_Mode, error) {
	return accessMode(mode, c.has(csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER))
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
