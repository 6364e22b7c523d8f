package volumemanager

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/util/loophold"
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
	object, err := r.source.Get(ctx, trustBundle(name))
	if err != nil {
		return "", err
	}
	bundle, ok := kubeapi.TrustBundleOf(object)
	if !ok {
		return "", fmt.Errorf("get %s: got a %T", trustBundle(name), object)
	}
	return bundle.PEM, nil
}

func (r objectRoles) GetTrustBundlesBySigner(ctx context.Context, signer string, selector *metav1.LabelSelector) (string, error) {
	lister, ok := r.source.(objects.Lister)
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

// DeviceHolder keeps a block volume's device open while a pod has it, so that
// the kernel cannot give its number to another device: else a device that was
// detached and another attached would be the pod's without anybody's knowing.
// A hold outlives the process.
//
// Both calls may block as long as the device does. The manager waits no longer
// than an operation's context allows, makes one call for a path at a time, and
// keeps its root directory locked until each has returned.
type DeviceHolder interface {
	// Hold holds the device at path, a bind mount of its node. Held already is
	// success.
	Hold(path string) error
	// Release ends the hold; none is success, also where path is gone.
	Release(path string) error
}

// loopHolder is the kubelet's way: a loop device.
type loopHolder struct{}

func (loopHolder) Hold(path string) error {
	_, err := loophold.Hold(path)
	return err
}

func (loopHolder) Release(path string) error { return loophold.Release(path) }
