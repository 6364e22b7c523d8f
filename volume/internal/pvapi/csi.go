package pvapi

import v1 "k8s.io/api/core/v1"

// KeyCSIIdentity is in the attributes of CSI volumes that a provisioner has had made.
const KeyCSIIdentity = "storage.kubernetes.io/csiProvisionerIdentity"

// CSIIdentity is the value of [KeyCSIIdentity] of volumes that were made here. It has no
// time, so that a volume is the same however often it is asked for.
func CSIIdentity(driver string) string { return "podvol-" + driver }

// IsOfOtherProvisioner reports whether a CSI volume was not made here, but by a cluster's
// provisioner or by hand. Its annotations do not tell: all provisioners write the same.
func IsOfOtherProvisioner(pv *v1.PersistentVolume) bool {
	s := pv.Spec.CSI
	return s != nil && s.VolumeAttributes[KeyCSIIdentity] != CSIIdentity(s.Driver)
}
