// Package csitranslation turns volumes of the in-tree cloud plugins into volumes of the CSI
// drivers that have taken these over, by Kubernetes' own tables (k8s.io/csi-translation-lib):
// awsElasticBlockStore, azureDisk, azureFile, cinder, gcePersistentDisk, portworxVolume and
// vsphereVolume.
//
// A [Translator] is given to the node's manager, which then treats such a volume, inline or a
// PersistentVolume, as the driver's:
//
//	volumemanager.Config{Plugins: append(plugins.All(), csiPlugin), Translator: csitranslation.New()}
//
// The API's objects stay as they are. A node tells the cluster which plugins it translates
// ([Translator.MigratedPlugins], clusterhost.CSINodeConfig): kube-controller-manager and the
// drivers' sidecars then attach such volumes, and make and delete them. Without a cluster [Claims]
// does the latter, for package persistentvolume. Package attachdetach takes a Translator, too.
//
// Names and zones become parts of the handle that the driver gets. Those that would lead
// elsewhere are refused, which the tables alone do not do.
package csitranslation

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	lib "k8s.io/csi-translation-lib"
	"k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"

	"github.com/podvol/podvol/volume"
)

// Translator is a [volume.Translator], and translates storage classes, too. It is never changed.
type Translator struct {
	tables lib.CSITranslator
}

var _ volume.Translator = (*Translator)(nil)

// New returns a translator.
func New() *Translator {
	return &Translator{tables: lib.New()}
}

// MigratedPlugins returns the names, sorted, of the in-tree plugins whose volumes are
// translated: the annotation of the node's CSINode.
func (t *Translator) MigratedPlugins() []string {
	names := []string{
		plugins.AWSEBSInTreePluginName, plugins.AzureDiskInTreePluginName, plugins.AzureFileInTreePluginName,
		plugins.CinderInTreePluginName, plugins.GCEPDInTreePluginName, plugins.PortworxVolumePluginName,
		plugins.VSphereInTreePluginName,
	}
	slices.Sort(names)
	return names
}

// MigratedTo returns the name of the CSI driver that has taken over the in-tree plugin of a
// name; empty: none has, or it is not translated.
func (t *Translator) MigratedTo(plugin string) string {
	if !slices.Contains(t.MigratedPlugins(), plugin) {
		return ""
	}
	driver, err := t.tables.GetCSINameFromInTreeName(plugin)
	if err != nil {
		return ""
	}
	return driver
}

// Translate implements [volume.Translator]. An inline volume is named as the kubelet has it,
// after its disk; slashes are "~", as in the kubelet's directories. Its own readOnly is the
// spec's.
func (t *Translator) Translate(spec *volume.Spec, podNamespace string) (*volume.Spec, error) {
	if t.Plugin(spec) == "" {
		return spec, nil
	}
	if err := checkSource(spec); err != nil {
		return nil, err
	}
	if spec.PersistentVolume != nil {
		pv, err := t.tables.TranslateInTreePVToCSI(klog.Logger{}, spec.PersistentVolume)
		if err != nil {
			return nil, invalid(spec, err)
		}
		return &volume.Spec{PersistentVolume: pv, ReadOnly: spec.ReadOnly, Migrated: true}, checkHandle(pv)
	}
	pv, err := t.translateInline(spec.Volume, podNamespace)
	if err != nil {
		return nil, invalid(spec, err)
	}
	pv.Name = strings.ReplaceAll(pv.Name, "/", "~")
	if err := volume.CheckPathSegment("name of the translated volume", pv.Name); err != nil {
		return nil, err
	}
	return &volume.Spec{PersistentVolume: pv, ReadOnly: isReadOnly(pv), Migrated: true, InlineVolumeSpecForCSIMigration: true}, checkHandle(pv)
}

// isReadOnly: the tables make readOnly of a portworxVolume an access mode alone.
func isReadOnly(pv *v1.PersistentVolume) bool {
	return pv.Spec.CSI.ReadOnly || slices.Contains(pv.Spec.AccessModes, v1.ReadOnlyMany)
}

// Plugin implements [volume.Translator]. A spec of several sources is not translated.
func (t *Translator) Plugin(spec *volume.Spec) string {
	if spec == nil || len(volume.SourceTypes(spec)) != 1 {
		return ""
	}
	plugin, err := t.tables.GetInTreePluginNameFromSpec(spec.PersistentVolume, spec.Volume)
	if err != nil || t.MigratedTo(plugin) == "" {
		return ""
	}
	return plugin
}

// translateInline leaves the storage policy of a vsphereVolume out, on which the tables'
// function panics, and adds it as that of a PersistentVolume is.
func (t *Translator) translateInline(v *v1.Volume, podNamespace string) (*v1.PersistentVolume, error) {
	policy := ""
	if s := v.VsphereVolume; s != nil {
		without := *s
		policy, without.StoragePolicyName = s.StoragePolicyName, ""
		v = &v1.Volume{Name: v.Name, VolumeSource: v1.VolumeSource{VsphereVolume: &without}}
	}
	pv, err := t.tables.TranslateInTreeInlineVolumeToCSI(klog.Logger{}, v, podNamespace)
	if err == nil && policy != "" {
		pv.Spec.CSI.VolumeAttributes["storagepolicyname"] = policy
	}
	return pv, err
}

// TranslateClass returns the class with the driver's provisioner, parameters and topology. The
// error is a *[volume.InvalidSpecError].
func (t *Translator) TranslateClass(class *storagev1.StorageClass) (*storagev1.StorageClass, error) {
	driver := t.MigratedTo(class.Provisioner)
	if driver == "" {
		return nil, volume.Invalid("provisioner", "%q is no in-tree plugin that a CSI driver has taken over", class.Provisioner)
	}
	if err := checkClass(class); err != nil {
		return nil, err
	}
	translated, err := t.tables.TranslateInTreeStorageClassToCSI(klog.Logger{}, class.Provisioner, class)
	if err != nil {
		return nil, volume.Invalid("storage class "+class.Name, "cannot be translated for CSI driver %s: %v", driver, err)
	}
	translated.Provisioner = driver
	return translated, nil
}

// TranslateBack returns a volume that a driver has made for such a class with the in-tree source,
// as the API keeps it. The error is a *[volume.InvalidSpecError].
func (t *Translator) TranslateBack(pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	zonal, nodes := splitAffinity(pv)
	back, err := t.tables.TranslateCSIPVToInTree(zonal)
	if err != nil {
		return nil, volume.Invalid("volume "+pv.Name, "cannot be translated back to its in-tree source: %.300s", withoutVolume(err))
	}
	if len(nodes) > 0 {
		if back.Spec.NodeAffinity == nil {
			back.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: new(v1.NodeSelector)}
		}
		required := back.Spec.NodeAffinity.Required
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, nodes...)
	}
	spec := volume.NewSpecFromPersistentVolume(back, false)
	return back, checkSource(spec)
}

// withoutVolume leaves out the whole PersistentVolume that the tables print amid their errors.
func withoutVolume(err error) string {
	text := err.Error()
	before, rest, found := strings.Cut(text, ". PV:")
	if i := strings.LastIndex(rest, ". Error:"); found && i >= 0 {
		return before + ": " + rest[i+len(". Error:"):]
	}
	return text
}

// splitAffinity takes the terms that name a node, and no zone, out of a copy of pv: the tables
// refuse them.
func splitAffinity(pv *v1.PersistentVolume) (zonal *v1.PersistentVolume, nodes []v1.NodeSelectorTerm) {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return pv, nil
	}
	zonal = pv.DeepCopy()
	var zones []v1.NodeSelectorTerm
	for _, term := range zonal.Spec.NodeAffinity.Required.NodeSelectorTerms {
		if slices.ContainsFunc(term.MatchExpressions, func(r v1.NodeSelectorRequirement) bool { return r.Key != v1.LabelHostname }) {
			zones = append(zones, term)
		} else {
			nodes = append(nodes, term)
		}
	}
	if zonal.Spec.NodeAffinity.Required.NodeSelectorTerms = zones; len(zones) == 0 {
		zonal.Spec.NodeAffinity = nil
	}
	return zonal, nodes
}

func invalid(spec *volume.Spec, err error) error {
	return volume.Invalid("volume "+spec.Name(), "cannot be translated to its CSI driver's: %v", err)
}
