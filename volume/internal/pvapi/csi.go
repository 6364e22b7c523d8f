package pvapi

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	v1 "k8s.io/api/core/v1"
)

const identityPrefix = "podvol-"

// KeyCSIIdentity is in the attributes of CSI volumes that a provisioner has had made.
const KeyCSIIdentity = "storage.kubernetes.io/csiProvisionerIdentity"

// CSIIdentity is the value of [KeyCSIIdentity] of volumes that a node's own controller has
// had made. It has no time, so that a volume is the same however often it is asked for. It
// has the node, so that no other machine takes an exported volume for its own.
func CSIIdentity(node, driver string) string { return identityPrefix + node + "-" + driver }

// IsOfOtherProvisioner reports whether a CSI volume comes from a cluster's provisioner or was
// made by hand, and not by a controller of this module on any machine. The annotations do not
// tell: all provisioners write the same ones.
func IsOfOtherProvisioner(pv *v1.PersistentVolume) bool {
	s := pv.Spec.CSI
	if s == nil {
		return false
	}
	rest, ours := strings.CutPrefix(s.VolumeAttributes[KeyCSIIdentity], identityPrefix)
	return !ours || !strings.HasSuffix(rest, "-"+s.Driver)
}

// CSIAttachmentName is the kubelet's name of the VolumeAttachment of a driver's volume to a
// node.
func CSIAttachmentName(handle, driver, node string) string {
	sum := sha256.Sum256([]byte(handle + driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}
