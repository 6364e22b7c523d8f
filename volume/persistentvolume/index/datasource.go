package index

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// ErrNeedsData says that a claim is to have the content of something else, so it
// gets only a volume that was chosen for it. Any other would look as if the copy
// had been made.
var ErrNeedsData = errors.New("the claim is to have the content of something else")

// DataSourceOf returns what the volume of a claim is to be filled from; empty:
// nothing.
func DataSourceOf(claim *v1.PersistentVolumeClaim) string {
	if from := claim.Spec.DataSourceRef; from != nil {
		name := from.Name
		if namespace := ptr.Deref(from.Namespace, ""); namespace != "" {
			name = namespace + "/" + name
		}
		return fmt.Sprintf("%s %q", from.Kind, name)
	}
	if from := claim.Spec.DataSource; from != nil {
		return fmt.Sprintf("%s %q", from.Kind, from.Name)
	}
	return ""
}

// needsData says what to do for a claim with a data source.
func needsData(claim *v1.PersistentVolumeClaim) error {
	return fmt.Errorf("%w: %s (spec.dataSource, spec.dataSourceRef), which only a populator, an external provisioner or a driver that clones can copy: use a StorageClass of one, "+
		"or name a volume with that content in spec.volumeName, or make the claim again without a data source and copy the data yourself", ErrNeedsData, DataSourceOf(claim))
}
