package projected_test

import (
	"encoding/base64"
	"os"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/projected"
	"github.com/podvol/podvol/volume/volumesource"
)

// The volume that the API adds to every pod, and some more.
func TestPlugin(t *testing.T) {
	host := fakehost.New(t)
	plugin := projected.New(projected.Config{})
	if err := plugin.Init(host); err != nil {
		t.Fatal(err)
	}
	host.Add(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kube-root-ca.crt"}, Data: map[string]string{"ca.crt": "PEM"}})
	pod := fakehost.Pod("web", v1.Volume{Name: "kube-api-access", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
		Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](3607)}},
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []v1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
			{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
			{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "extra"}, Optional: ptr.To(true)}},
			{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Path: "roots.pem", Name: ptr.To("roots"), Optional: ptr.To(true)}},
			{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Path: "signers.pem", SignerName: ptr.To("example.com/s"), Optional: ptr.To(true)}},
		}}}})
	spec := volume.NewSpecFromVolume(&pod.Spec.Volumes[0])

	if got := plugin.GetPluginName(); got != "kubernetes.io/projected" {
		t.Errorf("name %q", got)
	}
	if got, err := plugin.GetVolumeName(spec); err != nil || got != "kube-api-access" {
		t.Errorf("volume name %q, %v", got, err)
	}
	const source = "projected: token, configmap kube-root-ca.crt, downwardAPI, secret extra, trust bundle roots, trust bundles"
	if got := volumesource.Describe(plugin, spec); got != source {
		t.Errorf("source %q", got)
	}
	want := []volume.ObjectRef{
		volume.NewObjectRef("ConfigMap", "default", "kube-root-ca.crt"), volume.NewObjectRef("Pod", "default", "web"),
		volume.NewObjectRef("Secret", "default", "extra"), volume.NewObjectRef("ClusterTrustBundle", "", "roots"),
		volume.NewObjectRef("ClusterTrustBundle", "", ""), // a signer's may be any
	}
	if got := volume.DependsOn(plugin, spec, pod); !slices.Equal(got, want) {
		t.Errorf("depends on %v", got)
	}

	m, err := plugin.NewMounter(spec, pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"ca.crt": "PEM", "namespace": "default", "roots.pem": "", "signers.pem": ""} {
		if data, err := os.ReadFile(m.GetPath() + "/" + file); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v", file, data, err)
		}
	}
	if claims := tokenClaims(t, m.GetPath()+"/token"); !strings.Contains(claims, `"sub":"system:serviceaccount:default:default"`) {
		t.Errorf("claims %s", claims)
	}
	if volume.RefreshAfter(m).IsZero() {
		t.Error("the token is never renewed")
	}
}

func tokenClaims(t *testing.T, file string) string {
	t.Helper()
	token, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(token), ".")
	if len(parts) != 3 {
		t.Fatalf("%d parts", len(parts))
	}
	claims, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	return string(claims)
}
