package persistentvolume

import (
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/internal/pvapi"
)

// annProvisioning is beside the finalizer: what the storage is made with, so that
// the same is asked for again even if the class has been replaced since, or
// another node selected.
const annProvisioning = ProvisioningFinalizer

// making is what a claim's storage is made with.
type making struct {
	Class *storagev1.StorageClass `json:"class"`
	// Node is the selected node, if there was one.
	Node string `json:"node,omitempty"`
}

// makingOf returns class and node of the storage that was begun for a claim, else
// those for a new one. The class may be nil. A user who may make claims could
// write the annotation, and so a class of their own: unless claims are trusted it
// counts only where the class says the same.
func (p *provisioner) makingOf(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (making, error) {
	if begun, ok := begunWith(claim); ok {
		if p.trustedClaims || class != nil && equality.Semantic.DeepEqual(begun.Class, madeWith(class)) {
			return begun, nil
		}
		return making{}, fmt.Errorf("storage may have been made for it by a StorageClass %q other than there is now: make that again as it was "+
			"(the claim's annotation %s has it), or, if you have seen that there is no storage, remove the finalizer %s", begun.Class.Name, annProvisioning, ProvisioningFinalizer)
	}
	if !waitsForConsumer(class) {
		return making{Class: class}, nil
	}
	return making{Class: class, Node: claim.Annotations[annSelectedNode]}, nil
}

// begunWith returns what a claim says that its storage was begun with.
func begunWith(claim *v1.PersistentVolumeClaim) (begun making, ok bool) {
	ok = isProvisioning(claim) && json.Unmarshal([]byte(claim.Annotations[annProvisioning]), &begun) == nil && begun.Class != nil
	return begun, ok
}

// madeWith returns the fields of a class that its storage depends on.
func madeWith(class *storagev1.StorageClass) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class.Name}, Provisioner: class.Provisioner, Parameters: class.Parameters, ReclaimPolicy: class.ReclaimPolicy,
		MountOptions: class.MountOptions, VolumeBindingMode: class.VolumeBindingMode, AllowedTopologies: class.AllowedTopologies,
	}
}

// withProvisioning returns the claim as it is before its storage is made.
func (p *provisioner) withProvisioning(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (*v1.PersistentVolumeClaim, error) {
	next, noted := p.duties.begin(claim, class)
	if !waitsForConsumer(class) {
		delete(next.Annotations, annSelectedNode) // also one that another program wrote: the pod is placed once the claim is bound
	}
	if _, known := begunWith(next); known || noted {
		return next, nil
	}
	begun := making{Class: madeWith(class)}
	if waitsForConsumer(class) {
		begun.Node = claim.Annotations[annSelectedNode]
	}
	data, err := json.Marshal(begun)
	if err != nil {
		return nil, fmt.Errorf("record what the volume is made with: %w", err)
	}
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, annProvisioning, string(data))
	next.Finalizers = withOne(next.Finalizers, ProvisioningFinalizer)
	return next, nil
}

// endProvisioning changes a claim's annotations and finalizers: only a stored
// volume has storage for it now.
func endProvisioning(claim *v1.PersistentVolumeClaim) {
	delete(claim.Annotations, annProvisioning)
	claim.Finalizers = pvapi.Without(claim.Finalizers, ProvisioningFinalizer)
}

func isProvisioning(claim *v1.PersistentVolumeClaim) bool {
	return slices.Contains(claim.Finalizers, ProvisioningFinalizer)
}
