package csitranslation

import (
	"context"
	"errors"
	"maps"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/volumesource"
)

// Controller is a plugin that has CSI drivers make volumes for claims, as package
// csi/controller's does.
type Controller interface {
	volume.NamedProvisionerPlugin
	volume.CloningVolumePlugin
	volume.DeletableVolumePlugin
	volume.SpecAttacher
	volume.SpecExpander
	volume.ModifiableVolumePlugin
	volume.PersistentVolumePlugin
	volume.MountOptionVolumePlugin
	volume.PodNamedVolumePlugin
}

// Claims is a [Controller] that also has the volumes of in-tree plugins, as the volumes of the
// drivers that have taken these over. It is used in that controller's place.
//
//   - A class whose provisioner is an in-tree plugin's name is translated. The volume that the
//     driver makes for it gets the in-tree source again, and annotations for the way back:
//     pv.kubernetes.io/migrated-to, and who had the driver make it.
//   - Such a volume is deleted by its driver, if it was made here. Like other volumes of in-tree
//     types, it is attached and grown by its driver.
type Claims struct {
	Controller
	translator *Translator
}

var (
	_ volume.MigratedProvisionerPlugin = (*Claims)(nil)
	_ volumesource.Describer           = (*Claims)(nil)
)

// NewClaims returns the plugin. It passes Init on to the controller.
func NewClaims(controller Controller, translator *Translator) *Claims {
	return &Claims{Controller: controller, translator: translator}
}

// MigratedTo implements [volume.MigratedProvisionerPlugin].
func (c *Claims) MigratedTo(plugin string) string { return c.translator.MigratedTo(plugin) }

// ProvisionsFor implements [volume.NamedProvisionerPlugin].
func (c *Claims) ProvisionsFor(provisioner string) bool {
	return c.MigratedTo(provisioner) != "" || c.Controller.ProvisionsFor(provisioner)
}

// CanSupport reports whether the volume is a driver's, translated or not. One that cannot be
// translated is none: no node mounts it.
func (c *Claims) CanSupport(spec *volume.Spec) bool {
	translated, err := c.translate(spec)
	return err == nil && c.Controller.CanSupport(translated)
}

// translate returns the driver's volume, as the controller knows those that it has had made.
func (c *Claims) translate(spec *volume.Spec) (*volume.Spec, error) {
	translated, err := c.translator.Translate(spec, "")
	if err != nil || translated == spec || translated.InlineVolumeSpecForCSIMigration {
		return translated, volume.NothingDone(err)
	}
	pv := translated.PersistentVolume // a copy
	made := pv.Annotations[pvapi.AnnProvisionedBy]
	if identity := pv.Annotations[pvapi.KeyCSIIdentity]; identity != "" && c.MigratedTo(made) == pv.Spec.CSI.Driver {
		pv.Annotations[pvapi.AnnProvisionedBy] = pv.Spec.CSI.Driver
		if pv.Spec.CSI.VolumeAttributes == nil {
			pv.Spec.CSI.VolumeAttributes = make(map[string]string)
		}
		pv.Spec.CSI.VolumeAttributes[pvapi.KeyCSIIdentity] = identity
	}
	return translated, nil
}

// GetVolumeName implements [volume.VolumePlugin].
func (c *Claims) GetVolumeName(spec *volume.Spec) (string, error) {
	return c.GetPodVolumeName(spec, "")
}

// GetPodVolumeName implements [volume.PodNamedVolumePlugin].
func (c *Claims) GetPodVolumeName(spec *volume.Spec, podUID types.UID) (string, error) {
	translated, err := c.translate(spec)
	if err != nil {
		return "", err
	}
	return c.Controller.GetPodVolumeName(translated, podUID)
}

// DescribeSource implements [volumesource.Describer].
func (c *Claims) DescribeSource(spec *volume.Spec) string {
	translated, err := c.translate(spec)
	if err != nil {
		return spec.Name()
	}
	return volumesource.Describe(c.Controller, translated)
}

// NewProvisioner implements [volume.ProvisionableVolumePlugin].
func (c *Claims) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	return c.newProvisioner(options, c.Controller.NewProvisioner)
}

// NewCloner implements [volume.CloningVolumePlugin].
func (c *Claims) NewCloner(options volume.VolumeOptions, source *v1.PersistentVolume) (volume.Provisioner, error) {
	translated, err := c.translate(volume.NewSpecFromPersistentVolume(source, false))
	if err != nil {
		return nil, err
	}
	return c.newProvisioner(options, func(options volume.VolumeOptions) (volume.Provisioner, error) {
		return c.Controller.NewCloner(options, translated.PersistentVolume)
	})
}

func (c *Claims) newProvisioner(options volume.VolumeOptions, by func(volume.VolumeOptions) (volume.Provisioner, error)) (volume.Provisioner, error) {
	if c.MigratedTo(options.Provisioner) == "" {
		return by(options)
	}
	p := &provisioner{translator: c.translator, class: storagev1.StorageClass{Provisioner: options.Provisioner, Parameters: options.Parameters}}
	translated, err := c.translator.TranslateClass(&p.class)
	if err != nil {
		return nil, err
	}
	options.Provisioner, options.Parameters = translated.Provisioner, translated.Parameters
	options.Check = func(made *v1.PersistentVolume) error {
		_, err := c.translator.TranslateBack(made)
		return err
	}
	p.driver, err = by(options)
	return p, err
}

// provisioner makes the volume of a claim whose class names an in-tree plugin.
type provisioner struct {
	translator *Translator
	class      storagev1.StorageClass
	driver     volume.Provisioner
}

// Provision implements [volume.Provisioner]. The driver deletes a volume again that cannot be
// translated back, by its Check.
func (p *provisioner) Provision(ctx context.Context, selectedNode *v1.Node, allowed []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	class := p.class
	class.AllowedTopologies = allowed
	translated, err := p.translator.TranslateClass(&class)
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	made, err := p.driver.Provision(ctx, selectedNode, translated.AllowedTopologies)
	if err != nil || made == nil {
		return nil, err
	}
	back, err := p.translator.TranslateBack(made)
	if err != nil {
		return nil, errors.New(err.Error()) // the volume is there
	}
	back.Annotations = maps.Clone(back.Annotations)
	if back.Annotations == nil {
		back.Annotations = make(map[string]string)
	}
	back.Annotations[pvapi.AnnProvisionedBy] = p.class.Provisioner
	back.Annotations[pvapi.AnnMigratedTo] = made.Spec.CSI.Driver
	if identity := made.Spec.CSI.VolumeAttributes[pvapi.KeyCSIIdentity]; identity != "" {
		back.Annotations[pvapi.KeyCSIIdentity] = identity
	}
	return back, nil
}

// NewDeleter implements [volume.DeletableVolumePlugin].
func (c *Claims) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	translated, err := c.translate(spec)
	if err != nil {
		return nil, err
	}
	return c.Controller.NewDeleter(translated)
}

// AttachSpec implements [volume.SpecAttacher].
func (c *Claims) AttachSpec(ctx context.Context, spec *volume.Spec, node types.NodeName) (volume.Attachment, error) {
	translated, err := c.translate(spec)
	if err != nil {
		return volume.Attachment{}, err
	}
	return c.Controller.AttachSpec(ctx, translated, node)
}

// DetachSpec implements [volume.SpecAttacher].
func (c *Claims) DetachSpec(ctx context.Context, spec *volume.Spec, node types.NodeName) error {
	translated, err := c.translate(spec)
	if err != nil {
		return err
	}
	return c.Controller.DetachSpec(ctx, translated, node)
}

// ExpandSpec implements [volume.SpecExpander].
func (c *Claims) ExpandSpec(ctx context.Context, spec *volume.Spec, size resource.Quantity) (resource.Quantity, bool, error) {
	translated, err := c.translate(spec)
	if err != nil {
		return resource.Quantity{}, false, err
	}
	return c.Controller.ExpandSpec(ctx, translated, size)
}

// Modify implements [volume.ModifiableVolumePlugin].
func (c *Claims) Modify(ctx context.Context, spec *volume.Spec, class *storagev1.VolumeAttributesClass) error {
	translated, err := c.translate(spec)
	if err != nil {
		return err
	}
	return c.Controller.Modify(ctx, translated, class)
}
