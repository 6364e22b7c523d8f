package embedded

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// immutable says that a field stays as it is; from is the stored value and to the
// declared one, because says what the field is bound to.
func immutable(ref volume.ObjectRef, field string, from, to any, because, next string) error {
	e := &volume.Failure{
		Cause: ErrImmutable, Subject: ref.String() + " " + field, Next: next,
		What: fmt.Sprintf("%s: %s cannot become %s, it stays %s, since %s", ref, field, shown(to), shown(from), because),
	}
	if field == "spec.claimRef" {
		e.Err = claimbinding.ErrElsewhere
	}
	return e
}

// field is one that must not change.
type field struct {
	name     string
	old, new any
}

// checkClaim refuses changes to a claim that has a volume, or for which one is
// being made, and puts into next the fields that a manifest cannot remove. A
// claim that has none yet can be changed at will, unlike in Kubernetes.
func checkClaim(stored, next *v1.PersistentVolumeClaim) error {
	_, bound := stored.Annotations[bindCompleted]
	because := "a volume is being made for the claim"
	switch {
	case bound:
		because = fmt.Sprintf("the claim has volume %q", stored.Spec.VolumeName)
	case !slices.Contains(stored.Finalizers, persistentvolume.ProvisioningFinalizer):
		return nil
	}
	if next.Spec.VolumeName == "" {
		next.Spec.VolumeName = stored.Spec.VolumeName
	}
	old, wanted := &stored.Spec, &next.Spec
	fields := []field{
		{"spec.volumeName", old.VolumeName, wanted.VolumeName},
		{"spec.storageClassName", old.StorageClassName, wanted.StorageClassName},
		{"spec.accessModes", sorted(old.AccessModes), sorted(wanted.AccessModes)},
		{"spec.volumeMode", modeOf(old.VolumeMode), modeOf(wanted.VolumeMode)},
		{"spec.selector", old.Selector, wanted.Selector},
		{"spec.dataSource", old.DataSource, wanted.DataSource},
		{"spec.dataSourceRef", old.DataSourceRef, wanted.DataSourceRef},
	}
	ref := volume.NewObjectRef(kindClaim, stored.Namespace, stored.Name)
	if err := checkShrinking(ref, stored, next, because); err != nil {
		return err
	}
	return firstChanged(ref, fields, because,
		"put the manifest back, or declare a claim of another name; else delete this one first, with what its volume's reclaim policy does to its data")
}

// checkShrinking refuses a claim that asks for less than it asked for and has, as
// an API server does ("field can not be less than status.capacity"). What it
// asked for and has not got yet can be taken back (KEP-1790).
func checkShrinking(ref volume.ObjectRef, stored, next *v1.PersistentVolumeClaim, because string) error {
	const name = "spec.resources.requests.storage"
	had, wants := stored.Spec.Resources.Requests[v1.ResourceStorage], next.Spec.Resources.Requests[v1.ResourceStorage]
	has, known := stored.Status.Capacity[v1.ResourceStorage]
	if wants.Cmp(had) >= 0 || known && wants.Cmp(has) >= 0 {
		return nil
	}
	least := had
	if known {
		because += fmt.Sprintf(" of %s, which becomes no smaller", has.String())
		if has.Cmp(had) < 0 {
			least = has
		}
	}
	return immutable(ref, name, had.String(), wants.String(), because,
		fmt.Sprintf("put the manifest back, or ask for %s: it can not be less than status.capacity", least.String()))
}

// checkVolume refuses changes to a volume that a claim has, or had, and keeps its
// claimRef. A volume that never had a claim can be changed at will, unlike in
// Kubernetes.
func checkVolume(stored, next *v1.PersistentVolume) error {
	ref := stored.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		return nil
	}
	if wanted := next.Spec.ClaimRef; wanted == nil || sameClaim(wanted, ref) {
		next.Spec.ClaimRef = ref.DeepCopy()
	}
	old, wanted := &stored.Spec, &next.Spec
	claim := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	return firstChanged(volume.NewObjectRef(kindVolume, "", stored.Name), []field{
		{"spec.claimRef", ref, wanted.ClaimRef},
		{sourceField(old), old.PersistentVolumeSource, wanted.PersistentVolumeSource},
		{"spec.volumeMode", modeOf(old.VolumeMode), modeOf(wanted.VolumeMode)},
		{"spec.nodeAffinity", old.NodeAffinity, wanted.NodeAffinity},
	}, fmt.Sprintf("it holds what claim %q (UID %s) has stored", claim, ref.UID),
		"put the manifest back, or declare a PersistentVolume of another name; else delete the claim, then this one first")
}

// sameClaim reports whether a declared claimRef means the stored one.
func sameClaim(declared, stored *v1.ObjectReference) bool {
	return declared.Namespace == stored.Namespace && declared.Name == stored.Name && (declared.UID == "" || declared.UID == stored.UID)
}

func sourceField(spec *v1.PersistentVolumeSpec) string {
	data, err := json.Marshal(spec.PersistentVolumeSource)
	var types map[string]json.RawMessage
	if err != nil || json.Unmarshal(data, &types) != nil {
		return "its source"
	}
	for name := range types {
		return "spec." + name
	}
	return "its source"
}

func modeOf(mode *v1.PersistentVolumeMode) v1.PersistentVolumeMode {
	if mode == nil {
		return v1.PersistentVolumeFilesystem
	}
	return *mode
}

func sorted[S ~[]E, E cmp.Ordered](s S) S { return slices.Sorted(slices.Values(s)) }

func firstChanged(ref volume.ObjectRef, fields []field, because, advice string) error {
	for _, f := range fields {
		if !equality.Semantic.DeepEqual(f.old, f.new) {
			return immutable(ref, f.name, f.old, f.new, because, advice)
		}
	}
	return nil
}

// shown is a value as people write it in a manifest.
func shown(value any) string {
	const most = 120
	data, err := json.Marshal(value)
	if err != nil {
		return "?"
	}
	if string(data) == "null" {
		return "absent"
	}
	if len(data) > most {
		return strings.ToValidUTF8(string(data[:most]), "") + "…"
	}
	return string(data)
}

// checkIdentity refuses another object of the same name. A UID that was declared the
// last time, too, is no other's.
func checkIdentity(ref volume.ObjectRef, stored, declared metav1.Object) error {
	uid := declared.GetUID()
	if uid == "" || uid == stored.GetUID() {
		return nil
	}
	last, err := lastDeclared(stored)
	if err != nil || last["uid"] == string(uid) {
		return err
	}
	return immutable(ref, "metadata.uid", stored.GetUID(), uid,
		"that is the one that exists", "take the UID out of the manifest, or delete the stored one first")
}
