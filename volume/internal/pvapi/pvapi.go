// Package pvapi says what the fields and annotations of claims and volumes mean:
// their class and mode, the objects they refer to, and their maker. It reads and
// returns values, keeps nothing and does no I/O.
package pvapi

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
)

// ClaimRef returns the reference to a claim.
func ClaimRef(name types.NamespacedName) volume.ObjectRef {
	return volume.ObjectRef{Kind: KindClaim, NamespacedName: name}
}

// VolumeRef returns the reference to a PersistentVolume.
func VolumeRef(name string) volume.ObjectRef { return volume.NewObjectRef(KindVolume, "", name) }

// Kinds of objects, as the store names them.
const (
	KindPod    = "Pod"
	KindClaim  = "PersistentVolumeClaim"
	KindVolume = "PersistentVolume"
	// KindAttachment is of the group storage.k8s.io.
	KindAttachment = "VolumeAttachment"
	// KindAttributesClass is of the group storage.k8s.io.
	KindAttributesClass = "VolumeAttributesClass"
)

// VolumeMode returns a volume mode, which is Filesystem where none is named.
func VolumeMode(mode *v1.PersistentVolumeMode) v1.PersistentVolumeMode {
	return ptr.Deref(mode, v1.PersistentVolumeFilesystem)
}

// NameOf returns the name of a claim.
func NameOf(pvc *v1.PersistentVolumeClaim) types.NamespacedName {
	return types.NamespacedName{Namespace: pvc.Namespace, Name: pvc.Name}
}

// RequestOf returns the size that a claim asks for.
func RequestOf(pvc *v1.PersistentVolumeClaim) resource.Quantity {
	return pvc.Spec.Resources.Requests[v1.ResourceStorage]
}

// ClaimRefOf returns the name of the claim that a volume refers to, if there is one.
func ClaimRefOf(pv *v1.PersistentVolume) (types.NamespacedName, bool) {
	if ref := pv.Spec.ClaimRef; ref != nil {
		return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, true
	}
	return types.NamespacedName{}, false
}

// AwaitsClaimAnnotation is on a volume that was declared with the UID of its
// claim, until that claim has it: it has not been created here, so that its
// absence is not its deletion, and nothing is reclaimed. The value is the claim's
// UID. A user who takes the claimRef away gives the volume to other claims.
const AwaitsClaimAnnotation = "podvol.io/awaits-claim"

// AwaitsClaim reports whether the claim of a volume is to be created yet.
func AwaitsClaim(pv *v1.PersistentVolume) bool {
	uid := pv.Annotations[AwaitsClaimAnnotation]
	return uid != "" && pv.Spec.ClaimRef != nil && string(pv.Spec.ClaimRef.UID) == uid
}

// Annotations of storage classes, claims and volumes.
const (
	AnnDefaultClass     = "storageclass.kubernetes.io/is-default-class"
	AnnDefaultClassBeta = "storageclass.beta.kubernetes.io/is-default-class"
	annClassBeta        = v1.BetaStorageClassAnnotation
)

// WantsDefaultClass reports whether a claim names no class, not even "".
func WantsDefaultClass(claim *v1.PersistentVolumeClaim) bool {
	_, named := Annotation(&claim.ObjectMeta, annClassBeta)
	return !named && claim.Spec.StorageClassName == nil
}

// ClaimClass returns the class of a claim: what it names, "" included, else
// the default.
func ClaimClass(pvc *v1.PersistentVolumeClaim, defaultClass string) string {
	if class, ok := Annotation(&pvc.ObjectMeta, annClassBeta); ok {
		return class
	}
	if pvc.Spec.StorageClassName != nil {
		return *pvc.Spec.StorageClassName
	}
	return defaultClass
}

// VolumeClass returns the class of a volume, which may be "".
func VolumeClass(pv *v1.PersistentVolume) string {
	if class, ok := Annotation(&pv.ObjectMeta, annClassBeta); ok {
		return class
	}
	return pv.Spec.StorageClassName
}

// Annotation returns an annotation, and whether it is there.
func Annotation(meta *metav1.ObjectMeta, key string) (string, bool) {
	value, ok := meta.Annotations[key]
	return value, ok
}

// Annotations of bound claims and volumes.
const (
	AnnBindCompleted     = "pv.kubernetes.io/bind-completed"
	AnnBoundByController = "pv.kubernetes.io/bound-by-controller"
	AnnYes               = "yes"

	// AnnPreResizeCapacity is on a volume that was expanded whose file system was not:
	// the size of that.
	AnnPreResizeCapacity = "volume.alpha.kubernetes.io/pre-resize-capacity"
	// AnnMigratedTo names the CSI driver that has taken a volume over from the plugin
	// that made it.
	AnnMigratedTo = "pv.kubernetes.io/migrated-to"
)

// With returns a copy of annotations with one set.
func With(annotations map[string]string, key, value string) map[string]string {
	all := make(map[string]string, len(annotations)+2)
	maps.Copy(all, annotations)
	all[key] = value
	return all
}

const (
	// AnnProvisionedBy names the provisioner that has made a volume.
	AnnProvisionedBy = "pv.kubernetes.io/provisioned-by"
	// DeletionFinalizer is on provisioned volumes with reclaim policy Delete, so
	// that the storage goes before the object that says where it is.
	DeletionFinalizer = "kubernetes.io/pv-controller"
	// TreePrefix is what the names of in-tree plugins begin with.
	TreePrefix = "kubernetes.io/"
)

// PluginOf returns the plugin that has made a volume, where it says which: others
// may support its source, too. Else the one that supports it.
func PluginOf(plugins *volume.VolumePluginMgr, spec *volume.Spec) (volume.VolumePlugin, error) {
	if maker := spec.PersistentVolume.Annotations[AnnProvisionedBy]; maker != "" {
		if plugin, err := plugins.FindPluginByName(maker); err == nil && plugin.CanSupport(spec) {
			return plugin, nil
		}
	}
	return plugins.FindPluginBySpec(spec)
}

// IsOfDriver reports whether a driver elsewhere does what a volume's reclaim policy
// says: it was migrated to that driver, or it is a CSI volume which another provisioner
// has had made, or which none of the plugins supports.
func IsOfDriver(pv *v1.PersistentVolume, plugins []volume.VolumePlugin) bool {
	if pv.Annotations[AnnMigratedTo] == "" && pv.Spec.CSI == nil {
		return false
	}
	spec := volume.NewSpecFromPersistentVolume(pv, false)
	if driver := pv.Annotations[AnnMigratedTo]; driver != "" {
		return !slices.ContainsFunc(plugins, func(p volume.VolumePlugin) bool {
			return p.GetPluginName() == driver || volume.ProvisionsFor(p, driver) && p.CanSupport(spec)
		})
	}
	if IsOfOtherProvisioner(pv) {
		return true
	}
	return !slices.ContainsFunc(plugins, func(p volume.VolumePlugin) bool { return p.CanSupport(spec) })
}

// PluginsOf returns all plugins, none of nil.
func PluginsOf(all *volume.VolumePluginMgr) []volume.VolumePlugin {
	if all == nil {
		return nil
	}
	return all.Plugins()
}

// Without returns a copy of finalizers without one.
func Without(finalizers []string, one string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == one })
}

// IgnoreMissing is for an object that is to go and has gone.
func IgnoreMissing(err error) error {
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return err
}

// IsGone reports whether the write of an object has let it go. Then it is
// enqueued at once, for the objects that wait for it, without waiting for the
// watch.
func IsGone(o metav1.Object) bool {
	return o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0
}

// LostClaimAnnotation is on a volume, beside [AwaitsClaimAnnotation], whose claim was
// not deleted, but has no record any more: a claim of that name gets its UID, and so
// the volume. The value is the UID.
const LostClaimAnnotation = "podvol.io/lost-claim"

// HasLostClaim reports whether a volume waits for a claim whose record was lost.
func HasLostClaim(pv *v1.PersistentVolume) bool {
	return AwaitsClaim(pv) && pv.Annotations[LostClaimAnnotation] == string(pv.Spec.ClaimRef.UID)
}

// LostClaimMessage tells the user of a volume whose claim is lost what to do.
func LostClaimMessage(pv *v1.PersistentVolume) string {
	if !HasLostClaim(pv) {
		return ""
	}
	ref := pv.Spec.ClaimRef
	return fmt.Sprintf("the record of its claim \"%s/%s\" was lost, and nothing says that it was deleted: its data is kept, and a claim of that name gets it again; "+
		"if its data is not needed, delete this volume", ref.Namespace, ref.Name)
}

// NoAttributesClass is the error of a claim whose VolumeAttributesClass does not exist.
func NoAttributesClass(name string) error {
	return fmt.Errorf("volumeattributesclass.storage.k8s.io %q not found; create it", name)
}
