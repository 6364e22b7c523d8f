package objects

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
)

// Roles plays the roles of a volume host that read objects:
// [volume.SecretGetter], [volume.ConfigMapGetter], [volume.TrustBundleGetter],
// [volume.CSIDriverGetter], [volume.AttachmentGetter] and [volume.EndpointsGetter].
// Trust bundles by signer need a Source that is a [KindReader]. Errors are the
// Source's. Its methods may be called concurrently if the Source's may.
type Roles struct{ Source Getter }

var (
	_ volume.SecretGetter      = Roles{}
	_ volume.ConfigMapGetter   = Roles{}
	_ volume.TrustBundleGetter = Roles{}
	_ volume.CSIDriverGetter   = Roles{}
	_ volume.AttachmentGetter  = Roles{}
	_ volume.EndpointsGetter   = Roles{}
)

// GetCSIDriver implements the role.
func (r Roles) GetCSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	return Get[*storagev1.CSIDriver](ctx, r.Source, volume.NewObjectRef("CSIDriver", "", name))
}

// GetVolumeAttachment implements the role.
func (r Roles) GetVolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	return Get[*storagev1.VolumeAttachment](ctx, r.Source, volume.NewObjectRef("VolumeAttachment", "", name))
}

// GetEndpointAddresses implements the role.
func (r Roles) GetEndpointAddresses(ctx context.Context, namespace, name string) ([]string, error) {
	found, err := Get[*kubeapi.Endpoints](ctx, r.Source, volume.NewObjectRef("Endpoints", namespace, name))
	if err != nil {
		return nil, err
	}
	return kubeapi.ReadyAddresses(found), nil
}

// GetSecret implements the role.
func (r Roles) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return Get[*v1.Secret](ctx, r.Source, volume.NewObjectRef("Secret", namespace, name))
}

// GetConfigMap implements the role.
func (r Roles) GetConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	return Get[*v1.ConfigMap](ctx, r.Source, volume.NewObjectRef("ConfigMap", namespace, name))
}

// GetTrustBundle implements the role.
func (r Roles) GetTrustBundle(ctx context.Context, name string) (string, error) {
	object, err := r.Source.Get(ctx, trustBundle(name))
	if err != nil {
		return "", err
	}
	bundle, ok := kubeapi.TrustBundleOf(object)
	if !ok {
		return "", fmt.Errorf("get %s: got a %T", trustBundle(name), object)
	}
	return bundle.PEM, nil
}

// GetTrustBundlesBySigner implements the role.
func (r Roles) GetTrustBundlesBySigner(ctx context.Context, signer string, selector *metav1.LabelSelector) (string, error) {
	lister, ok := r.Source.(KindReader)
	if !ok {
		return "", &volume.MissingRoleError{Role: "volume.TrustBundleGetter", Field: "TrustBundles"}
	}
	selects, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return "", volume.Invalid("clusterTrustBundle.labelSelector", "%v", err)
	}
	bundles, err := lister.List(ctx, "ClusterTrustBundle", "")
	if err != nil {
		return "", err
	}
	var pem strings.Builder
	seen := map[string]bool{}
	for _, object := range bundles {
		b, ok := kubeapi.TrustBundleOf(object)
		if !ok || b.SignerName != signer || !selects.Matches(labels.Set(b.Labels)) || seen[b.PEM] {
			continue
		}
		seen[b.PEM] = true
		pem.WriteString(strings.TrimRight(b.PEM, "\n") + "\n")
	}
	if len(seen) == 0 {
		return "", &volume.ObjectNotFoundError{Ref: trustBundle("of signer " + signer)}
	}
	return pem.String(), nil
}

func trustBundle(name string) volume.ObjectRef {
	return volume.NewObjectRef("ClusterTrustBundle", "", name)
}
