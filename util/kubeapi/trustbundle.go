package kubeapi

import (
	"reflect"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const bundleKind = "ClusterTrustBundle"

// TrustBundle is a ClusterTrustBundle of either version.
type TrustBundle struct {
	metav1.ObjectMeta
	// SignerName and PEM are the specification's signerName and trustBundle.
	SignerName, PEM string
}

// TrustBundleVersion returns the newest version of which there is a Go type of
// ClusterTrustBundles: certificates.k8s.io/v1 (1.37), else v1beta1.
func TrustBundleVersion() schema.GroupVersion {
	if stableBundle() == nil {
		return certificatesv1beta1.SchemeGroupVersion
	}
	return certificatesv1.SchemeGroupVersion
}

// NewTrustBundle returns an empty ClusterTrustBundle of [TrustBundleVersion].
func NewTrustBundle() metav1.Object {
	if t := stableBundle(); t != nil {
		return reflect.New(t).Interface().(metav1.Object)
	}
	return &certificatesv1beta1.ClusterTrustBundle{}
}

// MakeTrustBundle returns a ClusterTrustBundle of [TrustBundleVersion] as described.
func MakeTrustBundle(b TrustBundle) metav1.Object {
	object := NewTrustBundle()
	fields := reflect.ValueOf(object).Elem()
	fields.FieldByName("ObjectMeta").Set(reflect.ValueOf(b.ObjectMeta))
	fields.FieldByName("Spec").FieldByName("SignerName").SetString(b.SignerName)
	fields.FieldByName("Spec").FieldByName("TrustBundle").SetString(b.PEM)
	return object
}

// TrustBundleOf reads a ClusterTrustBundle of either version; the object's meta data
// stays its own. It is false for everything else.
func TrustBundleOf(object any) (TrustBundle, bool) {
	if b, ok := object.(*certificatesv1beta1.ClusterTrustBundle); ok {
		return TrustBundle{ObjectMeta: b.ObjectMeta, SignerName: b.Spec.SignerName, PEM: b.Spec.TrustBundle}, true
	}
	t := stableBundle()
	if t == nil || reflect.TypeOf(object) != reflect.PointerTo(t) {
		return TrustBundle{}, false
	}
	b := reflect.ValueOf(object).Elem()
	spec := b.FieldByName("Spec")
	return TrustBundle{
		ObjectMeta: b.FieldByName("ObjectMeta").Interface().(metav1.ObjectMeta),
		SignerName: spec.FieldByName("SignerName").String(),
		PEM:        spec.FieldByName("TrustBundle").String(),
	}, true
}

// stableBundle is the type of ClusterTrustBundle in certificates.k8s.io/v1, or nil
// where there is none. Only a scheme knows a type by its name.
var stableBundle = sync.OnceValue(func() reflect.Type {
	scheme := runtime.NewScheme()
	if err := certificatesv1.AddToScheme(scheme); err != nil {
		return nil
	}
	return scheme.KnownTypes(certificatesv1.SchemeGroupVersion)[bundleKind]
})
