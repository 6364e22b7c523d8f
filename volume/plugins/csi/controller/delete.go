package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// deleter has a driver delete a volume that it has made.
type deleter struct {
	plugin *Plugin
	pv     *v1.PersistentVolume
	source *csivolume.Source
	secret *v1.SecretReference
	volume.NoMetrics
}

// NewDeleter implements [volume.DeletableVolumePlugin] for PersistentVolumes that their
// driver has made for a claim of this package: the annotation pv.kubernetes.io/provisioned-by
// names it, and [Plugin.IsMadeHere] is true. Others are refused with a *[volume.InvalidSpecError]:
// their data has another owner.
func (p *Plugin) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	d, err := p.newDeleter(spec)
	if err != nil {
		return nil, csivolume.Failed("NewDeleter", spec.Name(), err)
	}
	return d, nil
}

func (p *Plugin) newDeleter(spec *volume.Spec) (*deleter, error) {
	source, err := csivolume.Checked(&p.Kind, spec)
	if err != nil {
		return nil, err
	}
	if source.Inline {
		return nil, volume.Invalid("csi", "is an inline volume, which goes with its pod")
	}
	pv := spec.PersistentVolume
	if by := pv.Annotations[pvapi.AnnProvisionedBy]; by != source.Driver {
		return nil, volume.Invalid("metadata.annotations."+pvapi.AnnProvisionedBy, "is %q, so driver %s has not made the volume for a claim, and its data stays; delete it by the means of its storage",
			by, source.Driver)
	}
	if !p.IsMadeHere(pv) { // external-provisioner writes the same annotation
		return nil, volume.Invalid("spec.csi.volumeAttributes["+pvapi.KeyCSIIdentity+"]", "is %q, so another provisioner than this node's has had the volume made, and its data stays; delete it there, or by the means of its storage",
			source.Attributes[pvapi.KeyCSIIdentity])
	}
	if policy := pv.Spec.PersistentVolumeReclaimPolicy; policy != v1.PersistentVolumeReclaimDelete {
		return nil, volume.Invalid("spec.persistentVolumeReclaimPolicy", "is %q, so the volume's data stays", policy)
	}
	return &deleter{plugin: p, pv: pv.DeepCopy(), source: source, secret: annotatedSecret(pv, annDeletionSecret, annDeletionSecretNamespace)}, nil
}

// GetPath is empty: the volume is mounted in no pod.
func (d *deleter) GetPath() string { return "" }

// Delete has the driver delete the volume by DeleteVolume, if the host's
// [volume.ReleaseVerifier] allows it and nothing of the volume is left on this node, which has it
// attached no more; else the error matches [volume.ErrInUse]. A volume that the driver does not know counts as
// deleted. Other errors are as with Provision.
func (d *deleter) Delete(ctx context.Context) error {
	return csivolume.Failed("Delete", d.pv.Name, d.delete(ctx))
}

func (d *deleter) delete(ctx context.Context) error {
	releases, err := volume.Role[volume.ReleaseVerifier](d.plugin.Host)
	if err != nil {
		return volume.NothingDone(err)
	}
	verify := func(ctx context.Context) error {
		if err := releases.VerifyReleased(ctx, d.pv); err != nil {
			return err
		}
		return errors.Join(d.plugin.checkDetached(ctx, d.source), d.plugin.disk.CheckUnused(d.source))
	}
	if err := verify(ctx); err != nil {
		return volume.NothingDone(err)
	}
	driver, c, err := d.plugin.service(ctx, d.source.Driver)
	if err != nil {
		return err
	}
	if err := c.Needs(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, d.source.Driver); err != nil {
		return err
	}
	r := &csi.DeleteVolumeRequest{VolumeId: d.source.Handle}
	if r.Secrets, err = csivolume.Secrets(ctx, d.plugin.Host, d.secret, "DeleteVolume"); err != nil {
		return err
	}
	return d.plugin.deleteVolume(ctx, driver, r, verify)
}

// checkDetached refuses a volume that this node has attached, or is attaching, as far as the host
// knows attachments.
func (p *Plugin) checkDetached(ctx context.Context, s *csivolume.Source) error {
	getter, err := volume.Role[volume.AttachmentGetter](p.Host)
	if err != nil {
		return nil
	}
	_, err = getter.GetVolumeAttachment(ctx, csivolume.AttachmentName(s, string(p.Host.GetNodeName())))
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return nil
	case err == nil:
		err = fmt.Errorf("%w: this node has the volume attached", volume.ErrInUse)
	}
	return err
}

// deleteVolume makes the call once verify allows it, which is asked when no other call for
// the volume is under way.
func (p *Plugin) deleteVolume(ctx context.Context, d *drivers.Driver, r *csi.DeleteVolumeRequest, verify func(context.Context) error) error {
	var refused error
	err := p.control(ctx, drivers.Call{Driver: d, Method: "DeleteVolume", Volume: r.VolumeId, Secret: csivolume.ValuesOf(r.Secrets)}, func(ctx context.Context, c *drivers.Controls) error {
		if refused = verify(ctx); refused != nil {
			return nil
		}
		_, err := c.DeleteVolume(ctx, r)
		if status.Code(err) == codes.NotFound { // some drivers answer so where the specification says OK
			return nil
		}
		return err
	})
	return errors.Join(volume.NothingDone(refused), err)
}
