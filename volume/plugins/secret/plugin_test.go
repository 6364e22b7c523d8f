package secret_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/secret"
	"github.com/podvol/podvol/volume/volumesource"
)

func TestPlugin(t *testing.T) {
	host := fakehost.New(t)
	plugin := secret.New(secret.Config{})
	if err := plugin.Init(host); err != nil {
		t.Fatal(err)
	}
	host.Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tls"}, Data: map[string][]byte{"tls.key": []byte("canary")}})
	pod := fakehost.Pod("web", v1.Volume{Name: "certs", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{
		SecretName: "tls", DefaultMode: ptr.To[int32](0o400)}}})
	spec := volume.NewSpecFromVolume(&pod.Spec.Volumes[0])

	if got := plugin.GetPluginName(); got != "kubernetes.io/secret" {
		t.Errorf("name %q", got)
	}
	if got, err := plugin.GetVolumeName(spec); err != nil || got != "tls" {
		t.Errorf("volume name %q, %v", got, err)
	}
	if got := volumesource.Describe(plugin, spec); got != "secret tls" {
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

// On disk, no mount is made, and none is needed to take the volume down.
func TestOnDiskMountsNothing(t *testing.T) {
	host := fakehost.New(t)
	host.Add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Data: map[string][]byte{"key": []byte("x")}})
	plugin := secret.New(secret.Config{OnDisk: true})
	if err := plugin.Init(host); err != nil {
		t.Fatal(err)
	}
	v := v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}}
	pod := fakehost.Pod("web", v)
	mounter, err := plugin.NewMounter(volume.NewSpecFromVolume(&v), pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := mounter.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(mounter.GetPath(), "key")); err != nil || string(text) != "x" {
		t.Errorf("%q, %v", text, err)
	}
	unmounter, err := plugin.NewUnmounter("v", pod.UID)
	if err != nil {
		t.Fatal(err)
	}
	if err := unmounter.TearDown(t.Context()); err != nil {
		t.Error(err)
	}
	if calls := host.Fake.Calls(); len(calls) > 0 {
		t.Errorf("the mounter was called: %v", calls)
	}
}
