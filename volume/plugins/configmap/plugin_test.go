package configmap_test

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
	"github.com/podvol/podvol/volume/plugins/configmap"
	"github.com/podvol/podvol/volume/volumesource"
)

func TestPlugin(t *testing.T) {
	host := fakehost.New(t)
	plugin := configmap.New()
	if err := plugin.Init(host); err != nil {
		t.Fatal(err)
	}
	host.Add(&v1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app-config"},
		Data:       map[string]string{"app.yaml": "level: debug\n"},
		BinaryData: map[string][]byte{"logo": {0x89}},
	})
	pod := fakehost.Pod("web", v1.Volume{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: "app-config"}, DefaultMode: ptr.To[int32](0o440),
		Items: []v1.KeyToPath{{Key: "app.yaml", Path: "etc/app.yaml"}, {Key: "logo", Path: "logo.png", Mode: ptr.To[int32](0o444)}},
	}}})
	spec := volume.NewSpecFromVolume(&pod.Spec.Volumes[0])

	if got := plugin.GetPluginName(); got != "kubernetes.io/configmap" {
		t.Errorf("name %q", got)
	}
	if got, err := plugin.GetVolumeName(spec); err != nil || got != "config/app-config" {
		t.Errorf("volume name %q, %v", got, err)
	}
	if got := volumesource.Describe(plugin, spec); got != "configmap app-config" {
		t.Errorf("source %q", got)
	}
	if got := volume.DependsOn(plugin, spec, pod); !slices.Equal(got, []volume.ObjectRef{volume.NewObjectRef("ConfigMap", "default", "app-config")}) {
		t.Errorf("depends on %v", got)
	}
	if volume.SupportsMountOption(plugin) {
		t.Error("takes mount options")
	}

	m, err := plugin.NewMounter(spec, pod)
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(host.RootDir, "pods", string(pod.UID), "volumes/kubernetes.io~configmap/config")
	if m.GetPath() != want {
		t.Errorf("path %s", m.GetPath())
	}
	if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(want + "/etc/app.yaml"); err != nil || string(data) != "level: debug\n" {
		t.Errorf("%q, %v", data, err)
	}
	if info, err := os.Stat(want + "/logo.png"); err != nil || info.Mode() != 0o444 {
		t.Errorf("%v, %v", info, err)
	}
	if calls := host.Fake.Calls(); len(calls) > 0 {
		t.Errorf("a config map needs no mount: %v", calls)
	}
}

// Scenario: an optional config map that does not exist.
func TestOptionalMissing(t *testing.T) {
	host := fakehost.New(t)
	plugin := configmap.New()
	if err := plugin.Init(host); err != nil {
		t.Fatal(err)
	}
	pod := fakehost.Pod("web", v1.Volume{Name: "config", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: "later"}, Optional: ptr.To(true)}}})
	m, err := plugin.NewMounter(volume.NewSpecFromVolume(&pod.Spec.Volumes[0]), pod)
	if err != nil {
		t.Fatal(err)
	}
	visible := func() []string {
		t.Helper()
		if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
			t.Fatal(err)
		}
		names, err := filepath.Glob(m.GetPath() + "/[^.]*")
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	if got := visible(); len(got) > 0 {
		t.Errorf("the volume should be empty: %v", got)
	}
	ref := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "later"}, Data: map[string]string{"a": "1"}}
	host.Add(ref)
	if got := visible(); len(got) != 1 {
		t.Errorf("the config map exists now: %v", got)
	}
	host.Delete(volume.NewObjectRef("ConfigMap", "default", "later"))
	if got := visible(); len(got) > 0 {
		t.Errorf("the config map is gone again: %v", got)
	}
}
