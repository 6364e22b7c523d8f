package controller

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi"
)

// NodePlugin is a node's plugin that attaches what it mounts, without a cluster: package
// selfattach calls it. All else is the plugin's within.
type NodePlugin struct {
	*csi.Plugin
	attach *Plugin
}

var _ volume.SpecAttacher = (*NodePlugin)(nil)

// ForNode returns a node's plugin that attaches by the Controller service of the same drivers.
// The errors are those of [csi.New] and of [New]. NoCluster is set.
func ForNode(node csi.Config) (*NodePlugin, error) {
	node.NoCluster = true
	mounts, err := csi.New(node)
	if err != nil {
		return nil, err
	}
	attach, err := New(Config{Drivers: node.Drivers, RegistryDir: node.RegistryDir, StagedDir: node.StagedDir, CallTimeout: node.CallTimeout, Dial: node.Dial, Logger: node.Logger})
	if err != nil {
		return nil, errors.Join(err, mounts.Close())
	}
	return &NodePlugin{Plugin: mounts, attach: attach}, nil
}

// Init implements [volume.VolumePlugin].
func (p *NodePlugin) Init(host volume.VolumeHost) error {
	return errors.Join(p.Plugin.Init(host), p.attach.Init(host))
}

// Drivers returns the status of all drivers, as [csi.Plugin.Drivers] does, and then what the calls
// that attach know of them: a driver may be there twice.
func (p *NodePlugin) Drivers() []csi.DriverStatus {
	return slices.Concat(p.Plugin.Drivers(), p.attach.Drivers())
}

// Subscribe tells of the calls that mount and of those that attach, as [csi.Plugin.Subscribe] does.
func (p *NodePlugin) Subscribe(f func(csi.Operation)) (stop func()) {
	mounts, attaches := p.Plugin.Subscribe(f), p.attach.drivers.Subscribe(f)
	return func() { mounts(); attaches() }
}

// Close ends the connections, as [csi.Plugin.Close] does.
func (p *NodePlugin) Close() error { return errors.Join(p.Plugin.Close(), p.attach.Close()) }

// AttachSpec implements [volume.SpecAttacher]; see [Plugin.AttachSpec]. The node is this one,
// whatever its name: its drivers know it by another.
func (p *NodePlugin) AttachSpec(ctx context.Context, spec *volume.Spec, _ types.NodeName) (volume.Attachment, error) {
	return p.attach.AttachSpec(ctx, spec, p.attach.Host.GetNodeName())
}

// DetachSpec implements [volume.SpecAttacher]; see [Plugin.DetachSpec]. The node is this one.
func (p *NodePlugin) DetachSpec(ctx context.Context, spec *volume.Spec, _ types.NodeName) error {
	return p.attach.DetachSpec(ctx, spec, p.attach.Host.GetNodeName())
}
