package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

// deleter has a driver delete a volume that it has made.
type deleter struct {
	controller *Controller
	pv         *v1.PersistentVolume
	source     *source
	secret     *v1.SecretReference
	volume.NoMetrics
}

// NewDeleter implements [volume.DeletableVolumePlugin] for PersistentVolumes that their
// driver has made for a claim of this package: the annotation pv.kubernetes.io/provisioned-by
// names it, and [IsMadeHere] is true. Others are refused with a *[volume.InvalidSpecError]:
// their data is another's.
func (p *Controller) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	d, err := p.newDeleter(spec)
	if err != nil {
		return nil, failed("NewDeleter", spec.Name(), err)
	}
	return d, nil
}

func (p *Controller) newDeleter(spec *volume.Spec) (*deleter, error) {
	source, err := p.node.checkedSource(spec)
	if err != nil {
		return nil, err
	}
	if source.inline {
		return nil, volume.Invalid("csi", "is an inline volume, which goes with its pod")
	}
	pv := spec.PersistentVolume
	if by := pv.Annotations[pvapi.AnnProvisionedBy]; by != source.driver {
		return nil, volume.Invalid("metadata.annotations."+pvapi.AnnProvisionedBy, "is %q, so driver %s has not made the volume for a claim, and its data stays; delete it by the means of its storage",
			by, source.driver)
	}
	if !IsMadeHere(pv) { // external-provisioner writes the same annotation
		return nil, volume.Invalid("spec.csi.volumeAttributes["+pvapi.KeyCSIIdentity+"]", "is %q, so another provisioner than this one has had the volume made, and its data stays; delete it there, or by the means of its storage",
			source.attributes[pvapi.KeyCSIIdentity])
	}
	if policy := pv.Spec.PersistentVolumeReclaimPolicy; policy != v1.PersistentVolumeReclaimDelete {
		return nil, volume.Invalid("spec.persistentVolumeReclaimPolicy", "is %q, so the volume's data stays", policy)
	}
	d := &deleter{controller: p, pv: pv.DeepCopy(), source: source}
	if name, namespace := pv.Annotations[annDeletionSecret], pv.Annotations[annDeletionSecretNamespace]; name != "" || namespace != "" {
		d.secret = &v1.SecretReference{Name: name, Namespace: namespace}
	}
	return d, nil
}

// GetPath is empty: the volume is mounted in no pod.
func (d *deleter) GetPath() string { return "" }

// Delete has the driver delete the volume by DeleteVolume, if the host's
// [volume.ReleaseVerifier] allows it and nothing of the volume is left on this node; else
// the error matches [volume.ErrInUse]. That the driver does not know the volume is success.
// Other errors are those of Provision.
func (d *deleter) Delete(ctx context.Context) error {
	return failed("Delete", d.pv.Name, d.delete(ctx))
}

func (d *deleter) delete(ctx context.Context) error {
	releases, err := volume.Role[volume.ReleaseVerifier](d.controller.node.Host)
	if err != nil {
		return volume.NothingDone(err)
	}
	verify := func(ctx context.Context) error {
		if err := releases.VerifyReleased(ctx, d.pv); err != nil {
			return err
		}
		return d.controller.node.disk.checkUnused(d.source)
	}
	if err := verify(ctx); err != nil {
		return volume.NothingDone(err)
	}
	driver, c, err := d.controller.service(ctx, d.source.driver)
	if err != nil {
		return err
	}
	if err := c.needs(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, d.source.driver); err != nil {
		return err
	}
	r := &csi.DeleteVolumeRequest{VolumeId: d.source.handle}
	if r.Secrets, err = d.controller.node.secretsOf(ctx, d.secret, "DeleteVolume"); err != nil {
		return err
	}
	return d.controller.deleteVolume(ctx, driver, r, verify)
}

// deleteVolume makes the call once verify allows it, which is asked when no other call for
// the volume is under way.
func (p *Controller) deleteVolume(ctx context.Context, d *driver, r *csi.DeleteVolumeRequest, verify func(context.Context) error) error {
	var refused error
	err := p.control(ctx, call{driver: d, method: "DeleteVolume", volume: r.VolumeId, secret: valuesOf(r.Secrets)}, func(ctx context.Context, c *controls) error {
		if refused = verify(ctx); refused != nil {
			return nil
		}
		_, err := c.DeleteVolume(ctx, r)
		if status.Code(err) == codes.NotFound { // of drivers that forget to succeed
			return nil
		}
		return err
	})
	return errors.Join(volume.NothingDone(refused), err)
}

// checkUnused refuses to delete a volume of which the node has something left, staged or
// published.
func (d disk) checkUnused(s *source) error {
	staged, err := d.isThere(d.deviceDir(s))
	if err != nil {
		return err
	}
	if staged {
		return leftAt(d.deviceDir(s))
	}
	root := filepath.Dir(filepath.Dir(filepath.Dir(d.dir()))) // <root>/plugins/kubernetes.io/csi
	for _, above := range [][]string{{filepath.Join(root, "pods"), "volumes", "kubernetes.io~csi"}, {d.blockDir()}} {
		for dir, err := range below(above[0], filepath.Join(above[1:]...)) {
			if err == nil {
				err = d.checkOther(s, dir)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// checkOther refuses where one of the volumes in a directory is the source's.
func (d disk) checkOther(s *source, dir string) error {
	for place, err := range below(dir, "") {
		if err != nil {
			return err
		}
		data, err := readData(place)
		if err != nil {
			return err
		}
		if data != nil && data.DriverName == s.driver && data.VolumeHandle == s.handle {
			return leftAt(place)
		}
	}
	return nil
}

func leftAt(place string) error {
	return fmt.Errorf("%w: by %s the volume is staged or published on this node", volume.ErrInUse, place)
}

// below are the directories <dir>/*/<sub>; none without dir.
func below(dir, sub string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			yield("", err)
			return
		}
		for _, e := range entries {
			if e.IsDir() && !yield(filepath.Join(dir, e.Name(), sub), nil) {
				return
			}
		}
	}
}
