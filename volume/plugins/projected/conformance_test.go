package projected_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/util/testenv/rendertest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/projected"
	"github.com/podvol/podvol/volume/volumetest"
)

func TestConformance(t *testing.T) { volumetest.Run(t, newPlugin, suite()) }

// Without a mount the files are the same.
func TestRenderedFilesAreTheSame(t *testing.T) { rendertest.Run(t, newPlugin, suite()) }

func newPlugin() volume.VolumePlugin { return projected.New(projected.Config{}) }

func suite() volumetest.Suite {
	const canary = "a-canary-sings"
	named := func(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }
	source := func(secret string) v1.VolumeSource {
		return v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(3607))}},
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: named("kube-root-ca.crt")}},
			{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
			{Secret: &v1.SecretProjection{LocalObjectReference: named(secret)}},
			{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Path: "roots.pem", Name: new("roots")}},
			{PodCertificate: &v1.PodCertificateProjection{SignerName: "example.com/pods", KeyType: "ECDSAP256",
				CredentialBundlePath: "bundle.pem", KeyPath: "own/key.pem", CertificateChainPath: "own/chain.pem"}},
		}}}
	}
	roots := kubeapi.MakeTrustBundle(kubeapi.TrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "roots"}, PEM: "PEM\n"})
	return volumetest.Suite{
		Canary: canary,
		Objects: []metav1.Object{
			&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": "CA"}},
			&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Data: map[string][]byte{"key": []byte(canary)}},
			roots,
		},
		Working: []volumetest.Case{{
			Name: "every source", Spec: volumetest.Inline(source("s")), Want: volumetest.Want{
				Exact: true, ReadOnly: true, Mount: &volumetest.Mount{FSType: "tmpfs"}, Files: map[string]volumetest.File{
					"token": {Varies: true}, "ca.crt": {Content: "CA", Mode: 0o644}, "namespace": {Content: "default"}, "key": {Content: canary}, "roots.pem": {Content: "PEM\n"},
					"bundle.pem": {Varies: true}, "own/key.pem": {Varies: true}, "own/chain.pem": {Varies: true}}},
		}},
		Refused: []volumetest.RefusedCase{
			{Name: "missing secret", Spec: volumetest.Inline(source("none")), Because: "Secret default/none"},
		},
	}
}
