package secret_test

import (
	"os"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/secret"
	"github.com/podvol/podvol/volume/volumetest"
)

func TestPlugin(t *testing.T) {
	host := volumetest.NewHost(t)
	plugin := secret.New()
	if err := plugin.Init(host); err != nil {
		t.Fatal(err)
	}
	host.Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tls"}, Data: map[string][]byte{"tls.key": []byte("canary")}})
	pod := volumetest.Pod("web", v1.Volume{Name: "certs", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{
		SecretName: "tls", DefaultMode: ptr.To[int32](0o400)}}})
	spec := volume.NewSpecFromVolume(&pod.Spec.Volumes[0])

	if got := plugin.GetPluginName(); got != "kubernetes.io/secret" {
		t.Errorf("name %q", got)
	}
	if got, err := plugin.GetVolumeName(spec); err != nil || got != "tls" {
		t.Errorf("volume name %q, %v", got, err)
	}
	if got := volume.DescribeSource(plugin, spec); got != "secret tls" {
		t.Errorf("source %q", got)
	}
	if got := volume.DependsOn(plugin, spec, pod); !slices.Equal(got, []volume.ObjectRef{volume.NewObjectRef("Secret", "default", "tls")}) {
		t.Errorf("depends on %v", got)
	}

	m, err := plugin.NewMounter(spec, pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(m.GetPath() + "/tls.key")
	if err != nil || info.Mode() != 0o400 {
		t.Errorf("%v, %v", info, err)
	}
	entry, mounted, err := host.Fake.Table().At(m.GetPath())
	if err != nil || !mounted || entry.FSType != "tmpfs" {
		t.Errorf("a secret belongs on a tmpfs: %+v, %v", entry, err)
	}
}
