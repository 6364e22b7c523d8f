package pvapi

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// ProvisioningFinalizer is on a claim while storage is made for it.
const ProvisioningFinalizer = "podvol.io/provisioning"

// ClonedClaim returns the claim whose content the volume of a claim begins with; false: it
// has no data source, or another one than a claim of its namespace.
func ClonedClaim(claim *v1.PersistentVolumeClaim) (types.NamespacedName, bool) {
	var group, kind, name, namespace string
	if from := claim.Spec.DataSourceRef; from != nil {
		group, kind, name, namespace = ptr.Deref(from.APIGroup, ""), from.Kind, from.Name, ptr.Deref(from.Namespace, "")
	} else if from := claim.Spec.DataSource; from != nil {
		group, kind, name = ptr.Deref(from.APIGroup, ""), from.Kind, from.Name
	}
	return types.NamespacedName{Namespace: claim.Namespace, Name: name},
		group == "" && kind == KindClaim && name != "" && (namespace == "" || namespace == claim.Namespace)
}

// IsCloning reports whether a volume is made for a claim from another claim's, which has
// the content until then.
func IsCloning(claim *v1.PersistentVolumeClaim) bool {
	_, clones := ClonedClaim(claim)
	return clones && slices.Contains(claim.Finalizers, ProvisioningFinalizer)
}
