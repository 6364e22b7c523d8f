package csi

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// publishContext returns the metadata of the volume's attachment to this node; nil: the
// driver does not attach, or nobody here knows attachments.
func (p *Plugin) publishContext(ctx context.Context, s *source, t *traits) (map[string]string, error) {
	if s.Inline || !t.attach {
		return nil, nil
	}
	getter, err := volume.Role[volume.AttachmentGetter](p.Host)
	if err != nil {
		return nil, nil
	}
	name := csivolume.AttachmentName(s, string(p.Host.GetNodeName()))
	a, err := getter.GetVolumeAttachment(ctx, name)
	why := ""
	switch {
	case errors.Is(err, volume.ErrNotFound):
		why = "there is no VolumeAttachment " + name
	case err != nil:
		return nil, volume.NothingDone(fmt.Errorf("VolumeAttachment %s cannot be read: %w", name, err))
	case a.DeletionTimestamp != nil:
		why = "it is being detached (VolumeAttachment " + name + ")"
	case a.Status.AttachError != nil && !a.Status.Attached:
		why = "attaching it failed: " + drivers.Redact(a.Status.AttachError.Message, nil)
		if code := a.Status.AttachError.ErrorCode; code != nil && codes.Code(*code) == codes.ResourceExhausted { // the limit is wrong
			p.cluster.again(s.Driver)
		}
	case !a.Status.Attached:
		why = "it is being attached (VolumeAttachment " + name + ")"
	default:
		return a.Status.AttachmentMetadata, nil
	}
	return nil, volume.NothingDone(&volume.Failure{Cause: ErrNotAttached, Subject: s.Handle,
		What: fmt.Sprintf("volume %.128q of driver %s is not attached to node %s: %s", s.Handle, s.Driver, p.Host.GetNodeName(), why),
		Next: "see the driver's controller and the attach/detach controller; drivers that do not attach say attachRequired: false in their CSIDriver object"})
}
