package csi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// secretsOf reads a secret for one call; nil: none is asked for. A failure has done
// nothing.
func (p *Plugin) secretsOf(ctx context.Context, ref *v1.SecretReference, call string) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	getter, err := volume.Role[volume.SecretGetter](p.Host)
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	object, err := getter.GetSecret(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, volume.NothingDone(fmt.Errorf("the secret %s/%s for %s cannot be read: %w", ref.Namespace, ref.Name, call, err))
	}
	secrets := make(map[string]string, len(object.Data))
	for key, value := range object.Data {
		secrets[key] = string(value)
	}
	return secrets, nil
}

// valuesOf are the strings that errors must not hold.
func valuesOf(secrets map[string]string) []string { return slices.Collect(maps.Values(secrets)) }

// attachmentName is the kubelet's name of a VolumeAttachment.
func attachmentName(s *source, node string) string {
	sum := sha256.Sum256([]byte(s.handle + s.driver + node))
	return "csi-" + hex.EncodeToString(sum[:])
}

// publishContext returns the metadata of the volume's attachment to this node; nil: the
// driver does not attach, or nobody here knows attachments.
func (p *Plugin) publishContext(ctx context.Context, s *source, t *traits) (map[string]string, error) {
	if s.inline || !t.attach {
		return nil, nil
	}
	getter, err := volume.Role[volume.AttachmentGetter](p.Host)
	if err != nil {
		return nil, nil
	}
	name := attachmentName(s, string(p.Host.GetNodeName()))
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
		why = "attaching it failed: " + redact(a.Status.AttachError.Message, nil)
		if code := a.Status.AttachError.ErrorCode; code != nil && codes.Code(*code) == codes.ResourceExhausted { // the limit is wrong
			p.cluster.again(s.driver)
		}
	case !a.Status.Attached:
		why = "it is being attached (VolumeAttachment " + name + ")"
	default:
		return a.Status.AttachmentMetadata, nil
	}
	return nil, volume.NothingDone(&volume.Failure{Cause: ErrNotAttached, Subject: s.handle,
		What: fmt.Sprintf("volume %.128q of driver %s is not attached to node %s: %s", s.handle, s.driver, p.Host.GetNodeName(), why),
		Next: "see the driver's controller and the attach/detach controller; drivers that do not attach say attachRequired: false in their CSIDriver object"})
}
