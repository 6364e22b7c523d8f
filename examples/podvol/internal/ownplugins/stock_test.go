package ownplugins

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/persistentvolume"
)

// The command says of a driver's volume what the controller of claims does with it.
func TestOnlyVolumesMadeHereAreDeleted(t *testing.T) {
	const driver = "disks.example.com"
	for identity, want := range map[string]bool{"podvol-node1-" + driver: true, "podvol-" + driver: false, "1700000000000-1234-" + driver: false, "": false} {
		pv := &v1.PersistentVolume{}
		pv.Name, pv.Annotations = "pv1", map[string]string{"pv.kubernetes.io/provisioned-by": driver}
		pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ns", Name: "claim", UID: "u1"}
		pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "handle",
			VolumeAttributes: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": identity}}
		if command, controller := DeletesStorage(pv), persistentvolume.DeletesStorage(pv, Stock()); command != want || controller != want {
			t.Errorf("made by %q: the command says %t, and the controller %t; want %t", identity, command, controller, want)
		}
	}
}

// A volume of another kind is no driver's, whatever made it.
func TestForeignVolumesOfOtherKindsStay(t *testing.T) {
	pv := &v1.PersistentVolume{}
	pv.Name, pv.Annotations = "pv1", map[string]string{"pv.kubernetes.io/provisioned-by": "disks.example.com"}
	pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ns", Name: "claim", UID: "u1"}
	pv.Spec.NFS = &v1.NFSVolumeSource{Server: "nas", Path: "/exports"}
	if DeletesStorage(pv) {
		t.Error("the NFS directory of another provisioner would be deleted")
	}
}
