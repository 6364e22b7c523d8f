package pvapi

import (
	"errors"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
)

// AttachmentError is what a VolumeAttachment says of a failed attempt: the reason, as the object
// and its reader name the operation and the volume. Its code is gRPC's for a node without room;
// others are not told.
func AttachmentError(err error, at time.Time) *storagev1.VolumeError {
	told := &storagev1.VolumeError{Time: metav1.NewTime(at), Message: err.Error()}
	if own, ok := errors.AsType[*volume.Error](err); ok && own.Error() == told.Message {
		told.Message = own.Err.Error()
	}
	if errors.Is(err, volume.ErrAttachLimitExceeded) {
		told.ErrorCode = new(int32(8))
	}
	return told
}
