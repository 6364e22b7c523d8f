package localdiscovery

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/localdisk"
	"github.com/podvol/podvol/volume/objects"
)

// nameOf is the same for a node's disk each time.
func (d *Discoverer) nameOf(id string) string {
	return fmt.Sprintf("local-pv-%x", sha256.Sum256([]byte(d.NodeName+"\x00"+id)))[:len("local-pv-")+16]
}

// offer stores the volume of a thing.
func (p *pass) offer(ctx context.Context, t *thing) {
	pv := p.volumeOf(t)
	t.Volume = pv.Name
	if !p.write {
		t.State = StateOffered
		return
	}
	_, err := p.Objects.Create(ctx, pv)
	switch {
	case err == nil:
		t.State = StateOffered
	case errors.Is(err, objects.ErrExists):
		p.offered(ctx, t)
	default:
		t.fail(fmt.Errorf("offer %s as PersistentVolume %q: %w", t.Path, pv.Name, err))
	}
}

// offered is for a volume that was stored after the volumes were read.
func (p *pass) offered(ctx context.Context, t *thing) {
	pv, err := objects.Get[*v1.PersistentVolume](ctx, p.Objects, volume.NewObjectRef(kindVolume, "", t.Volume))
	switch {
	case err != nil:
		t.fail(fmt.Errorf("PersistentVolume %q was stored by others: %w", t.Volume, err))
	case pv.Spec.Local != nil && pv.Spec.Local.Path == t.Path && t.ids.Is(localdisk.RecordedID(pv)):
		t.State = StateKnown
	default:
		t.refuse(ErrPathTaken, "another PersistentVolume has the name %q that this disk's would have", t.Volume)
	}
}

func (p *pass) volumeOf(t *thing) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{}
	pv.Name = p.nameOf(t.ID)
	pv.Labels = maps.Clone(p.Labels)
	pv.Annotations = map[string]string{
		VolumeIDAnnotation:      t.ID,
		NodeAnnotation:          p.NodeName,
		localdisk.ProvisionedBy: cmp.Or(p.Provisioner, localdisk.PluginName),
	}
	pv.Spec = v1.PersistentVolumeSpec{
		Capacity:                      v1.ResourceList{v1.ResourceStorage: t.Capacity},
		AccessModes:                   []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		VolumeMode:                    new(t.Mode),
		StorageClassName:              t.class.StorageClass,
		PersistentVolumeReclaimPolicy: t.class.ReclaimPolicy,
		NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
			MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{p.hostLabel()}}},
		}}}},
	}
	if t.ReadOnly {
		pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany}
	}
	pv.Spec.Local = &v1.LocalVolumeSource{Path: t.Path}
	if t.FSType != "" {
		pv.Spec.Local.FSType = new(t.FSType)
	}
	if t.Mode == v1.PersistentVolumeFilesystem {
		pv.Spec.MountOptions = slices.Clone(t.class.MountOptions)
	}
	return pv
}

// tell logs what became of something, unless that was said before.
func (d *Discoverer) tell(f Found) {
	what := string(f.State)
	if f.Err != nil {
		what += ": " + f.Err.Error()
	}
	if !d.passes.tell(f.Path+"\x00"+f.Source, what) || f.State == StateKnown {
		return
	}
	fields := []any{"path", f.Path, "volume", f.Volume, "disk", f.ID}
	switch {
	case f.State == StateOffered:
		d.log().Info("a local volume is offered", append(fields, "capacity", f.Capacity.String(), "mode", string(f.Mode))...)
	case errors.Is(f.Err, ErrNoVolume):
		d.log().Debug("not offered as a local volume", append(fields, "error", f.Err)...)
	case f.State == StateMissing:
		d.log().Warn("the disk of a local volume is missing", append(fields, "error", f.Err)...)
	default:
		d.log().Warn("not offered as a local volume", append(fields, "error", f.Err)...)
	}
}
