package volumemanager

import (
	"context"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// objectRoles are the volume host's roles that an object source can play.
type objectRoles struct{ source objects.Source }

var (
	_ volume.SecretGetter      = objectRoles{}
	_ volume.ConfigMapGetter   = objectRoles{}
	_ volume.TrustBundleGetter = objectRoles{}
)

func (r objectRoles) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return objects.Get[*v1.Secret](ctx, r.source, volume.NewObjectRef("Secret", namespace, name))
}

func (r objectRoles) GetConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	return objects.Get[*v1.ConfigMap](ctx, r.source, volume.NewObjectRef("ConfigMap", namespace, name))
}

func (r objectRoles) GetTrustBundle(ctx context.Context, name string) (string, error) {
	bundle, err := objects.Get[*certificatesv1.ClusterTrustBundle](ctx, r.source, trustBundle(name))
	if err != nil {
		return "", err
	}
	return bundle.Spec.TrustBundle, nil
}

func (r objectRoles) GetTrustBundlesBySigner(ctx context.Context, signer string, selector *metav1.LabelSelector) (string, error) {
	lister, ok := r.source.(objects.Lister)
	if !ok {
		return "", &volume.MissingRoleError{Role: "volume.TrustBundleGetter"}
	}
	selects, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return "", volume.Invalid("clusterTrustBundle.labelSelector", "%v", err)
	}
	bundles, err := objects.List[*certificatesv1.ClusterTrustBundle](ctx, lister, "ClusterTrustBundle", "")
	if err != nil {
		return "", err
	}
	var pem strings.Builder
	seen := map[string]bool{}
	for _, b := range bundles {
		if b.Spec.SignerName != signer || !selects.Matches(labels.Set(b.Labels)) || seen[b.Spec.TrustBundle] {
			continue
		}
		seen[b.Spec.TrustBundle] = true
		pem.WriteString(strings.TrimRight(b.Spec.TrustBundle, "\n") + "\n")
	}
	if len(seen) == 0 {
		return "", &volume.ObjectNotFoundError{Ref: trustBundle("of signer " + signer)}
	}
	return pem.String(), nil
}

func trustBundle(name string) volume.ObjectRef {
	return volume.NewObjectRef("ClusterTrustBundle", "", name)
}
