package payload

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
)

// trustBundle adds a file with the PEM certificates of one bundle, or of all
// that a signer's selector selects. Where that is nothing and the source is
// optional, the file is empty, as with the kubelet.
func (c *collector) trustBundle(ctx context.Context, at string, b *v1.ClusterTrustBundleProjection) error {
	ref := bundleRef(b)
	pem, err := c.readBundle(ctx, b)
	if err == nil && pem == "" {
		err = &volume.ObjectNotFoundError{Ref: ref}
	}
	switch {
	case err == nil:
	case errors.Is(err, volume.ErrNotFound) && isTrue(b.Optional):
		pem = ""
	case errors.Is(err, volume.ErrNotFound) && b.SignerName != nil:
		return fmt.Errorf("%s: no ClusterTrustBundle of signer %q is selected (a missing labelSelector selects none, an empty one all); "+
			"create one, or set optional: true: %w", at, *b.SignerName, err)
	default:
		return lookUpError(at, ref, err)
	}
	return c.addOwned(at, b.Path, []byte(pem), kubeapi.User(b))
}

func (c *collector) readBundle(ctx context.Context, b *v1.ClusterTrustBundleProjection) (string, error) {
	role, err := volume.Role[volume.TrustBundleGetter](c.host)
	if err != nil {
		return "", err
	}
	if b.Name != nil {
		return role.GetTrustBundle(ctx, *b.Name)
	}
	return role.GetTrustBundlesBySigner(ctx, *b.SignerName, b.LabelSelector)
}

// bundleRef names the bundle; a source that selects by signer has a reference
// without name.
func bundleRef(b *v1.ClusterTrustBundleProjection) volume.ObjectRef {
	name := ""
	if b.Name != nil {
		name = *b.Name
	}
	return volume.NewObjectRef("ClusterTrustBundle", "", name)
}
