package clusterhost

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/podvol/podvol/volume"
)

// Attachments is a [volume.AttachmentGetter] over the cluster's API. It asks anew each time,
// since a node's identity may get VolumeAttachments and not watch them, and keeps nothing.
// It is safe for concurrent use.
type Attachments struct{ clientset kubernetes.Interface }

var _ volume.AttachmentGetter = Attachments{}

// NewAttachments returns a getter that asks nothing yet.
func NewAttachments(clientset kubernetes.Interface) Attachments { return Attachments{clientset} }

// GetVolumeAttachment implements [volume.AttachmentGetter]. A request has half a minute. The
// Node authorizer forbids what does not exist for this node (yet): that is [volume.ErrNotFound].
func (a Attachments) GetVolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	found, err := a.clientset.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w: %w", &volume.ObjectNotFoundError{Ref: volume.NewObjectRef("VolumeAttachment", "", name)}, err)
	case err != nil:
		return nil, err
	}
	return found, nil
}
