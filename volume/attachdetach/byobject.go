package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// ByObject has an agent of a cluster attach volumes of CSI drivers by itself, without the cluster's
// attach/detach controller, as kubelets once did (enableControllerAttachDetach: false): it makes
// the VolumeAttachments that a driver's external-attacher works on, and deletes them. Package
// selfattach calls it. The agent's Node must not have [ManagedAnnotation], and its identity needs
// the right to get, list, watch, create and delete VolumeAttachments, which that of a kubelet lacks.
// It attaches no volume for one node that another's VolumeAttachment has. Two agents that look at
// the same moment both find none: the driver must refuse the second then.
//
// Its methods are idempotent, and may be called concurrently.
type ByObject struct {
	// VolumePlugin is the node's plugin of CSI drivers.
	volume.VolumePlugin
	// Objects are the API's.
	Objects objects.Client
	// Timeout is how long one attempt waits for the driver; 0: two minutes, as in a kubelet. What
	// it waits for goes on after that.
	Timeout time.Duration
}

var _ volume.SpecAttacher = ByObject{}

// AttachSpec implements [volume.SpecAttacher]. An error may have done something, unless no
// VolumeAttachment could be made.
func (b ByObject) AttachSpec(ctx context.Context, spec *volume.Spec, node types.NodeName) (volume.Attachment, error) {
	ref, object, err := attachmentOf(spec, node)
	if err != nil {
		return volume.Attachment{}, volume.NothingDone(err)
	}
	if err := b.checkAlone(ctx, spec, object); err != nil {
		return volume.Attachment{}, volume.NothingDone(err)
	}
	if _, err := b.Objects.Create(ctx, object); err != nil && !errors.Is(err, objects.ErrExists) {
		if errors.Is(err, objects.ErrUncertain) {
			return volume.Attachment{}, err
		}
		return volume.Attachment{}, volume.NothingDone(err)
	}
	var result volume.Attachment
	err = b.wait(ctx, ref, func(now *storagev1.VolumeAttachment) (bool, error) {
		switch {
		case now == nil:
			return false, fmt.Errorf("%s is gone", ref)
		case now.DeletionTimestamp != nil:
			return false, nil // it is made anew by the next attempt
		case now.Status.Attached:
			result = volume.Attachment{DevicePath: now.Status.AttachmentMetadata[DevicePathKey], Metadata: now.Status.AttachmentMetadata}
			return true, nil
		case now.Status.AttachError != nil:
			return false, errors.New(now.Status.AttachError.Message)
		}
		return false, nil
	})
	return result, err
}

// checkAlone refuses a volume for one node while another has it.
func (b ByObject) checkAlone(ctx context.Context, spec *volume.Spec, wanted *storagev1.VolumeAttachment) error {
	if isShared(spec) {
		return nil
	}
	all, err := objects.List[*storagev1.VolumeAttachment](ctx, objects.Live(b.Objects), pvapi.KindAttachment, "")
	if err != nil {
		return err
	}
	name := v1.UniqueVolumeName(wanted.Annotations[VolumeAnnotation])
	for _, other := range all {
		isSame := other.Name == attachmentName(name, types.NodeName(other.Spec.NodeName)) ||
			other.Spec.Attacher == wanted.Spec.Attacher && pvOf(other) != "" && pvOf(other) == pvOf(wanted)
		if isSame && other.Spec.NodeName != wanted.Spec.NodeName {
			return fmt.Errorf("only one node may have it at a time, and VolumeAttachment %s gives it to node %s; it is attached here once that is gone", other.Name, other.Spec.NodeName)
		}
	}
	return nil
}

// DetachSpec implements [volume.SpecAttacher]: it returns once the VolumeAttachment is gone.
func (b ByObject) DetachSpec(ctx context.Context, spec *volume.Spec, node types.NodeName) error {
	ref, _, err := attachmentOf(spec, node)
	if err != nil {
		return volume.NothingDone(err)
	}
	if err := pvapi.IgnoreMissing(b.Objects.Delete(ctx, ref, objects.Preconditions{})); err != nil {
		return err
	}
	return b.wait(ctx, ref, func(now *storagev1.VolumeAttachment) (bool, error) {
		if now != nil && now.Status.DetachError != nil {
			return false, errors.New(now.Status.DetachError.Message)
		}
		return now == nil, nil
	})
}

// wait reads a VolumeAttachment now and after each change, until is returns true or an error. nil
// is one that is not there.
func (b ByObject) wait(ctx context.Context, ref volume.ObjectRef, is func(*storagev1.VolumeAttachment) (bool, error)) error {
	timeout := b.Timeout
	if timeout == 0 {
		timeout = 2 * time.Minute
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("the driver's external-attacher has not answered within %s by %s", timeout, ref))
	defer cancel()
	changed := make(chan struct{}, 1)
	defer b.Objects.Watch(ref, func(volume.ObjectRef) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	for {
		now, err := objects.Get[*storagev1.VolumeAttachment](ctx, objects.Live(b.Objects), ref)
		if pvapi.IgnoreMissing(err) != nil {
			return err
		}
		if err != nil {
			now = nil
		}
		if done, err := is(now); done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// attachmentOf is the VolumeAttachment of a CSI driver's volume.
func attachmentOf(spec *volume.Spec, node types.NodeName) (volume.ObjectRef, *storagev1.VolumeAttachment, error) {
	if spec.PersistentVolume == nil || spec.PersistentVolume.Spec.CSI == nil {
		return volume.ObjectRef{}, nil, volume.Invalid("csi", "is not the source of the volume")
	}
	volumeName, err := csiVolumes{}.uniqueName(spec)
	name := attachmentName(volumeName, node)
	object := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{VolumeAnnotation: string(volumeName)}},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: csiVolumes{}.attacher(spec), NodeName: string(node), Source: sourceOf(spec)}}
	return volume.NewObjectRef(pvapi.KindAttachment, "", name), object, err
}
