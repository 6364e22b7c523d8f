package clusterhost

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// FenceAnnotation is the annotation of a Node that [ReportVolumes] changes to rule
// out that an older report takes effect. Its value means nothing.
const FenceAnnotation = "reports.podvol.io/fence"

// fence rules out that a report whose answer was lost still takes effect: reports
// are for one version of the Node, which it changes. A patch that changes nothing
// would leave the version, as the API server does not store it.
func (r *report) fence(ctx context.Context) error {
	if r.fenced {
		return nil
	}
	node, err := r.patch(ctx, map[string]string{FenceAnnotation: cryptorand.Text()}, nil)
	if err != nil {
		return fmt.Errorf("rule out older reports of the volumes in use of %s: %w", r.ref, err)
	}
	if node.ResourceVersion == r.node.ResourceVersion || !lists(node, r.node.Status.VolumesInUse) {
		return fmt.Errorf("rule out older reports of the volumes in use of %s: the API took the annotation %s, but has not stored it alone", r.ref, FenceAnnotation)
	}
	r.node, r.fenced = node, true
	return nil
}

// patch changes annotations, and the list unless it is nil, of the version of the Node
// that is known.
func (r *report) patch(ctx context.Context, annotations map[string]string, names []v1.UniqueVolumeName) (*v1.Node, error) {
	type metadata struct {
		ResourceVersion string            `json:"resourceVersion,omitempty"`
		Annotations     map[string]string `json:"annotations,omitempty"`
	}
	type status struct {
		VolumesInUse []v1.UniqueVolumeName `json:"volumesInUse"`
	}
	change := struct {
		Metadata metadata `json:"metadata"`
		Status   *status  `json:"status,omitempty"`
	}{Metadata: metadata{r.node.ResourceVersion, annotations}}
	if names != nil {
		change.Status = &status{names}
	}
	patch, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, reportTimeout, fmt.Errorf("the API has not answered within %s", reportTimeout))
	defer cancel()
	return r.clientset.CoreV1().Nodes().Patch(ctx, r.ref.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
}
