package selfattach

import (
	"context"
	"errors"
	"fmt"
	"maps"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// Recorded is the [volume.AttachmentGetter] of a program that attaches nothing, but must not
// delete a volume that is attached. It reads the records each time.
type Recorded struct {
	// Dirs are the directories of records ([Config].Dir).
	Dirs []string
	// NodeName is this node's name, by which attachments are asked for.
	NodeName types.NodeName
}

var _ volume.AttachmentGetter = Recorded{}

// GetVolumeAttachment returns the attachment of a volume of a CSI driver that has a record: it is
// attached, or may be. A record that cannot be read is an error, for it may be the volume's.
func (r Recorded) GetVolumeAttachment(_ context.Context, name string) (*storagev1.VolumeAttachment, error) {
	var errs []error
	for _, dir := range r.Dirs {
		all, damaged, err := records{dir}.load()
		errs = append(errs, err)
		for path, err := range damaged {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
		}
		for _, one := range all {
			if attachmentName(one.spec(), r.NodeName) == name {
				return volumeAttachment(name, r.NodeName, one), nil
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return nil, &volume.ObjectNotFoundError{Ref: volume.NewObjectRef("VolumeAttachment", "", name)}
}

// volumeAttachment says of a volume what its record does; nil: it is not attached.
func volumeAttachment(name string, node types.NodeName, r *record) *storagev1.VolumeAttachment {
	object := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.VolumeAttachmentSpec{NodeName: string(node)}}
	if r != nil {
		object.Status.Attached, object.Status.AttachmentMetadata = r.Step == attached, maps.Clone(r.Metadata)
	}
	return object
}
