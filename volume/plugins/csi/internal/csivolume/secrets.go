package csivolume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

// Secrets reads a secret for one call; nil: none is asked for. A failure has done
// nothing.
func Secrets(ctx context.Context, host volume.VolumeHost, ref *v1.SecretReference, call string) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	getter, err := volume.Role[volume.SecretGetter](host)
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	object, err := getter.GetSecret(ctx, ref.Namespace, ref.Name)
	if errors.Is(err, volume.ErrNotFound) {
		return nil, volume.NothingDone(fmt.Errorf("the secret %s/%s for %s is missing: %w; create it, or without a cluster give its manifest with those of the pods", ref.Namespace, ref.Name, call, err))
	}
	if err != nil {
		return nil, volume.NothingDone(fmt.Errorf("the secret %s/%s for %s cannot be read: %w", ref.Namespace, ref.Name, call, err))
	}
	secrets := make(map[string]string, len(object.Data))
	for key, value := range object.Data {
		secrets[key] = string(value)
	}
	return secrets, nil
}

// ValuesOf are the strings that errors must not hold.
func ValuesOf(secrets map[string]string) []string { return slices.Collect(maps.Values(secrets)) }

// AttachmentName is the kubelet's name of a VolumeAttachment.
func AttachmentName(s *Source, node string) string {
	return pvapi.CSIAttachmentName(s.Handle, s.Driver, node)
}
