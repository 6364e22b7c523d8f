package controller

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// ExpandSpec implements [volume.SpecExpander] by ControllerExpandVolume. Of a driver that
// grows volumes on the node only, it makes no call and says so. A size below the
// PersistentVolume's capacity is refused.
func (p *Plugin) ExpandSpec(ctx context.Context, spec *volume.Spec, size resource.Quantity) (reached resource.Quantity, node bool, err error) {
	reached, node, err = p.expand(ctx, spec, size)
	return reached, node, csivolume.Failed("Expand", spec.Name(), err)
}

func (p *Plugin) expand(ctx context.Context, spec *volume.Spec, size resource.Quantity) (reached resource.Quantity, node bool, err error) {
	t, err := p.target(ctx, spec)
	if err != nil {
		return reached, false, err
	}
	if has := t.pv.Spec.Capacity[v1.ResourceStorage]; size.Cmp(has) < 0 {
		return reached, false, volume.Invalid("spec.resources.requests.storage", "is %s, and the volume has %s: volumes do not shrink", size.String(), has.String())
	}
	const grows = csi.ControllerServiceCapability_RPC_EXPAND_VOLUME
	if s := t.driver.Current(); !t.controls.Has(grows) && s != nil && s.Has(csi.NodeServiceCapability_RPC_EXPAND_VOLUME) {
		return size, true, nil
	}
	if err := t.controls.Needs(grows, t.source.Driver); err != nil {
		return reached, false, err
	}
	r := &csi.ControllerExpandVolumeRequest{VolumeId: t.source.Handle, CapacityRange: &csi.CapacityRange{RequiredBytes: size.Value()}}
	if r.Secrets, err = t.secretsFor(ctx, t.source.ControllerExpand, "ControllerExpandVolume"); err != nil {
		return reached, false, err
	}
	if r.VolumeCapability, err = t.capability(); err != nil {
		return reached, false, err
	}
	var answer *csi.ControllerExpandVolumeResponse
	err = p.control(ctx, t.call("ControllerExpandVolume", r.Secrets), func(ctx context.Context, c *drivers.Controls) (err error) {
		answer, err = c.ControllerExpandVolume(ctx, r)
		return err
	})
	switch status.Code(err) {
	case codes.OK:
	case codes.FailedPrecondition:
		return reached, false, volume.NothingDone(fmt.Errorf("%w: %w", volume.ErrResizeInUse, err))
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return reached, false, volume.NothingDone(fmt.Errorf("%w: %w", volume.ErrResizeInfeasible, err))
	}
	if err != nil {
		return reached, false, err
	}
	if answer.GetCapacityBytes() < size.Value() {
		return reached, false, fmt.Errorf("driver %s says that ControllerExpandVolume is done, and volume %.128q has %d bytes of %d", t.source.Driver, t.source.Handle, answer.GetCapacityBytes(), size.Value())
	}
	return *resource.NewQuantity(answer.GetCapacityBytes(), resource.BinarySI), answer.GetNodeExpansionRequired(), nil
}

// Modify implements [volume.ModifiableVolumePlugin] by ControllerModifyVolume. The class must
// be of the volume's driver. Parameters that the driver refuses match [volume.ErrModifyInfeasible].
func (p *Plugin) Modify(ctx context.Context, spec *volume.Spec, class *storagev1.VolumeAttributesClass) error {
	return csivolume.Failed("Modify", spec.Name(), p.modify(ctx, spec, class))
}

func (p *Plugin) modify(ctx context.Context, spec *volume.Spec, class *storagev1.VolumeAttributesClass) error {
	t, err := p.target(ctx, spec)
	if err != nil {
		return err
	}
	if class.DriverName != t.source.Driver {
		refusal := volume.Invalid("volumeAttributesClassName", "is %q, a class of the driver %q, and the volume is one of %s", class.Name, class.DriverName, t.source.Driver)
		return volume.NothingDone(fmt.Errorf("%w: %w", volume.ErrModifyInfeasible, refusal))
	}
	if err := t.controls.Needs(csi.ControllerServiceCapability_RPC_MODIFY_VOLUME, t.source.Driver); err != nil {
		return err
	}
	r := &csi.ControllerModifyVolumeRequest{VolumeId: t.source.Handle, MutableParameters: class.Parameters}
	if r.Secrets, err = t.secretsFor(ctx, annotatedSecret(t.pv, annModifySecret, annModifySecretNamespace), "ControllerModifyVolume"); err != nil {
		return err
	}
	err = p.control(ctx, t.call("ControllerModifyVolume", r.Secrets), func(ctx context.Context, c *drivers.Controls) error {
		_, err := c.ControllerModifyVolume(ctx, r)
		return err
	})
	switch status.Code(err) {
	case codes.InvalidArgument, codes.OutOfRange, codes.NotFound:
		return volume.NothingDone(fmt.Errorf("%w: %w", volume.ErrModifyInfeasible, err))
	}
	return err
}

// annotatedSecret is a secret that annotations of a PersistentVolume name; nil: they name none.
func annotatedSecret(pv *v1.PersistentVolume, name, namespace string) *v1.SecretReference {
	if pv.Annotations[name] == "" && pv.Annotations[namespace] == "" {
		return nil
	}
	return &v1.SecretReference{Name: pv.Annotations[name], Namespace: pv.Annotations[namespace]}
}
