package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/csiclass"
	"github.com/podvol/podvol/volume/internal/machinedir"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
	"github.com/podvol/podvol/volume/plugins/csi/internal/staged"
)

const canAttach = csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME

// AttachSpec implements [volume.SpecAttacher] by ControllerPublishVolume. A driver without
// that call attaches nothing. Only this node can be attached to: a driver knows nodes by
// names of its own, and is asked for this one's (NodeGetInfo). The error matches
// [volume.ErrAttachLimitExceeded] if the node has no room for another volume (ResourceExhausted).
func (p *Plugin) AttachSpec(ctx context.Context, spec *volume.Spec, node types.NodeName) (volume.Attachment, error) {
	a, err := p.attach(ctx, spec, node)
	return a, csivolume.Failed("Attach", spec.Name(), err)
}

func (p *Plugin) attach(ctx context.Context, spec *volume.Spec, node types.NodeName) (a volume.Attachment, err error) {
	t, err := p.target(ctx, spec)
	if err != nil || !t.controls.Has(canAttach) {
		return a, err
	}
	r := &csi.ControllerPublishVolumeRequest{VolumeId: t.source.Handle, VolumeContext: t.source.Attributes}
	if r.Secrets, err = t.secretsFor(ctx, t.source.ControllerPublish, "ControllerPublishVolume"); err != nil {
		return a, err
	}
	if r.NodeId, err = p.nodeID(ctx, t.driver, node); err != nil {
		return a, err
	}
	if r.VolumeCapability, err = t.capability(); err != nil {
		return a, err
	}
	if t.controls.Has(csi.ControllerServiceCapability_RPC_PUBLISH_READONLY) {
		r.Readonly = spec.PersistentVolume.Spec.CSI.ReadOnly
	}
	err = p.control(ctx, t.call("ControllerPublishVolume", r.Secrets), func(ctx context.Context, c *drivers.Controls) error {
		answer, err := c.ControllerPublishVolume(ctx, r)
		a.Metadata = answer.GetPublishContext()
		return err
	})
	if code, ok := codeOf(err); ok && code == codes.ResourceExhausted {
		err = &volume.Failure{Cause: volume.ErrAttachLimitExceeded, Subject: t.source.Handle, Err: err, What: err.Error()}
	}
	return a, err
}

// DetachSpec implements [volume.SpecAttacher] by ControllerUnpublishVolume. While something
// of the volume is left on this node the error matches [volume.ErrInUse], and no call is made.
// Until the call has ended the node's plugin stages and publishes nothing of the volume, in
// whichever process it is.
func (p *Plugin) DetachSpec(ctx context.Context, spec *volume.Spec, node types.NodeName) error {
	return csivolume.Failed("Detach", spec.Name(), p.detach(ctx, spec, node))
}

func (p *Plugin) detach(ctx context.Context, spec *volume.Spec, node types.NodeName) error {
	t, err := p.target(ctx, spec)
	if err != nil || !t.controls.Has(canAttach) {
		return err
	}
	r := &csi.ControllerUnpublishVolumeRequest{VolumeId: t.source.Handle}
	if r.Secrets, err = t.secretsFor(ctx, t.source.ControllerPublish, "ControllerUnpublishVolume"); err != nil {
		return err
	}
	if r.NodeId, err = p.nodeID(ctx, t.driver, node); err != nil {
		return err
	}
	var refused error
	err = p.control(ctx, t.call("ControllerUnpublishVolume", r.Secrets), func(ctx context.Context, c *drivers.Controls) error {
		release, err := p.hold(t)
		defer release()
		if refused = volume.NothingDone(err); refused != nil {
			return nil
		}
		_, err = c.ControllerUnpublishVolume(ctx, r)
		return err
	})
	if refused != nil {
		return refused
	}
	return err
}

// hold keeps a volume of which nothing is left on this node from being staged, until release.
func (p *Plugin) hold(t *target) (release func(), err error) {
	own, err := staged.Table{Dir: p.disk.OpsDir()}.Begin(staged.Name(t.source.Driver, t.source.Handle, ""))
	if err != nil {
		return func() {}, inUse(err)
	}
	all, err := staged.Table{Dir: p.stagedDir, Home: p.disk.RootDir(), IsMounted: p.isMounted}.Begin(staged.Name(t.source.Driver, t.source.Handle, t.driver.Socket))
	release = func() { all.End(); own.End() }
	if err != nil {
		return release, inUse(err)
	}
	place, err := all.Elsewhere("")
	if place != "" {
		return release, fmt.Errorf("%w: it is staged at %s", volume.ErrInUse, place)
	}
	if err != nil {
		return release, err
	}
	return release, p.disk.CheckUnused(t.source)
}

// inUse marks the error of an operation that another one keeps from beginning.
func inUse(err error) error {
	if errors.Is(err, machinedir.ErrBusy) {
		return fmt.Errorf("%w: %w", volume.ErrInUse, err)
	}
	return err
}

func (p *Plugin) isMounted(place string) (bool, error) {
	_, mounted, err := table.Of(p.Host.GetMounter()).At(place)
	return mounted, err
}

// nodeID is the driver's name of a node.
func (p *Plugin) nodeID(ctx context.Context, d *drivers.Driver, node types.NodeName) (string, error) {
	if own := p.Host.GetNodeName(); node != own {
		return "", volume.Invalid("nodeName", "%q is not this node, %q, and only this node is known to driver %s here", node, own, d.Name)
	}
	info, err := p.nodeInfo(ctx, d)
	if err == nil && info.GetNodeId() == "" {
		err = volume.Invalid("nodeID", "driver %s gives this node no name", d.Name)
	}
	return info.GetNodeId(), volume.NothingDone(err)
}

// nodeInfo asks the driver for its id of this node, and the node's topology.
func (p *Plugin) nodeInfo(ctx context.Context, d *drivers.Driver) (info *csi.NodeGetInfoResponse, err error) {
	err = p.drivers.Do(ctx, drivers.Call{Driver: d, Method: "NodeGetInfo"}, func(ctx context.Context, s *drivers.Session) error {
		info, err = s.Node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		return err
	})
	return info, err
}

// target has a persistent volume of a driver, and the parameters of calls for it.
type target struct {
	pv       *v1.PersistentVolume
	source   *csivolume.Source
	driver   *drivers.Driver
	controls *drivers.Controls
	host     volume.VolumeHost
	migrated bool
}

// target finds the volume's driver. Errors have done nothing.
func (p *Plugin) target(ctx context.Context, spec *volume.Spec) (*target, error) {
	source, err := csivolume.Checked(&p.Kind, spec)
	if err != nil {
		return nil, err
	}
	if source.Inline {
		return nil, volume.Invalid("csi", "is an inline volume, which is its node's alone")
	}
	t := &target{pv: spec.PersistentVolume, source: source, host: p.Host, migrated: spec.Migrated}
	t.driver, t.controls, err = p.service(ctx, source.Driver)
	return t, err
}

func (t *target) secretsFor(ctx context.Context, ref *v1.SecretReference, method string) (map[string]string, error) {
	return csivolume.Secrets(ctx, t.host, ref, method)
}

func (t *target) call(method string, secrets map[string]string) drivers.Call {
	return drivers.Call{Driver: t.driver, Method: method, Volume: t.source.Handle, Secret: csivolume.ValuesOf(secrets), Migrated: t.migrated}
}

// capability is the same as the node's: the first access mode counts.
func (t *target) capability() (*csi.VolumeCapability, error) {
	mode := v1.ReadWriteOnce
	if modes := t.pv.Spec.AccessModes; len(modes) > 0 {
		mode = modes[0]
	}
	known, err := controlMode(mode, t.controls)
	if err != nil {
		return nil, err
	}
	if err := csiclass.CheckFSType("csi.fsType", t.source.FSType); err != nil {
		return nil, err
	}
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: known}}
	return accessKind(c, volume.NewSpecFromPersistentVolume(t.pv, false).IsBlock(), t.source.FSType, t.pv.Spec.MountOptions), nil
}
