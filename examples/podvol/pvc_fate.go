package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
	"github.com/podvol/podvol/examples/podvol/internal/ownplugins"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumesource"
)

// deletedText is kubectl's.
func deletedText(ref volume.ObjectRef) string {
	if ref.Kind == kubectlget.ClaimKind.Kind {
		return fmt.Sprintf("%s %q deleted from %s namespace", kubectlget.ClaimKind.Singular, ref.Name, ref.Namespace)
	}
	return fmt.Sprintf("%s %q deleted", kubectlget.VolumeKind.Singular, ref.Name)
}

// plannedFate says what becomes of a volume that its claim leaves, or that is
// deleted itself.
func plannedFate(pv *v1.PersistentVolume, itself bool) string {
	policy := pv.Spec.PersistentVolumeReclaimPolicy
	switch other := otherProvisioner(pv); {
	case ownplugins.DeletesStorage(pv):
		return fmt.Sprintf("the volume would be deleted, and its data %s: %s (reclaim policy Delete)", onDelete(pv), sourceOf(pv))
	case itself:
		return fmt.Sprintf("its data, %s, would stay there", sourceOf(pv))
	case policy == v1.PersistentVolumeReclaimRecycle:
		return fmt.Sprintf("the volume, %s, would be emptied (reclaim policy Recycle)", sourceOf(pv))
	case policy == v1.PersistentVolumeReclaimDelete && other != "":
		return fmt.Sprintf("the volume and its data, %s, would stay until %s, which has provisioned it, deletes it", sourceOf(pv), other)
	}
	return fmt.Sprintf("the volume and its data, %s, would stay (reclaim policy Retain)", sourceOf(pv))
}

// fate says what has become of a volume, of which there may have been nothing.
func fate(before, after *v1.PersistentVolume, missing bool) string {
	other := otherProvisioner(before)
	switch {
	case after == nil && missing:
		return fmt.Sprintf("the volume is deleted; its data was not there any more, so nothing of it was %s: %s", onDelete(before), sourceOf(before))
	case after == nil && ownplugins.DeletesStorage(before):
		return fmt.Sprintf("the volume is deleted, and its data %s: %s", onDelete(before), sourceOf(before))
	case after == nil:
		return fmt.Sprintf("its data stays: %s", sourceOf(before))
	case after.Status.Phase == v1.VolumeAvailable:
		return fmt.Sprintf("the volume, %s, is available again", sourceOf(before))
	case after.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete && other != "":
		return fmt.Sprintf("the volume is %s and keeps its data, %s, until %s, which has provisioned it, deletes it", after.Status.Phase, sourceOf(before), other)
	}
	again := shellJoin(append(programName(os.Args[0]), "pv", "release", before.Name))
	return fmt.Sprintf("the volume is %s and keeps its data, %s; %s would offer it to other claims", after.Status.Phase, sourceOf(before), again)
}

// isUnreclaimed reports whether what a volume's reclaim policy asks for has failed, or
// waits for those who still use it, as the message says.
func isUnreclaimed(pv *v1.PersistentVolume) bool {
	return pv.Status.Phase == v1.VolumeFailed || pv.Status.Phase == v1.VolumeReleased && pv.Status.Message != ""
}

// isUnfinished reports whether a volume that its claim has left, as was asked for, has
// not become what its reclaim policy says.
func isUnfinished(pv *v1.PersistentVolume) bool {
	isRecycled := pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimRecycle
	return isUnreclaimed(pv) || pv.Status.Phase == v1.VolumeBound || ownplugins.DeletesStorage(pv) || isRecycled && pv.Status.Phase != v1.VolumeAvailable
}

// wayOut says how a volume is got rid of whose storage cannot be deleted.
func wayOut(pv *v1.PersistentVolume) string {
	if !isUnreclaimed(pv) || !ownplugins.DeletesStorage(pv) {
		return ""
	}
	return fmt.Sprintf("; if that cannot be mended, %s deletes it without its data", shellJoin(append(programName(os.Args[0]), "pv", "delete", pv.Name, "--keep-data")))
}

// otherProvisioner is who has provisioned a volume, or whose driver it is, unless
// podvol deletes its storage itself.
func otherProvisioner(pv *v1.PersistentVolume) string {
	if ownplugins.DeletesStorage(pv) {
		return ""
	}
	driver := ""
	if pv.Spec.CSI != nil {
		driver = pv.Spec.CSI.Driver
	}
	return cmp.Or(pv.Annotations["pv.kubernetes.io/migrated-to"], pv.Annotations["pv.kubernetes.io/provisioned-by"], driver)
}

// onDelete says what becomes of the data of a volume that is deleted, which a
// class may say.
func onDelete(pv *v1.PersistentVolume) string {
	switch pv.Annotations["provisioned.podvol.io/on-delete"] {
	case "archive":
		return "archived"
	case "retain":
		return "kept"
	}
	return "deleted"
}

// sourceOf describes where a volume's data is.
func sourceOf(pv *v1.PersistentVolume) string {
	spec := volume.NewSpecFromPersistentVolume(pv, false)
	for _, plugin := range ownplugins.Stock() {
		if plugin.CanSupport(spec) {
			return strings.TrimSpace(volumesource.Describe(plugin, spec))
		}
	}
	return "in its source"
}
