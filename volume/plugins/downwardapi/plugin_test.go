package downwardapi_test

import (
	"os"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/downwardapi"
	"github.com/podvol/podvol/volume/volumesource"
)

func TestPlugin(t *testing.T) {
	host := fakehost.New(t)
	plugin := downwardapi.New(downwardapi.Config{})
	if err := plugin.Init(host); err != nil {
		t.Fatal(err)
	}
	pod := fakehost.Pod("web", v1.Volume{Name: "info", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{
		Items: []v1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}}})
	spec := volume.NewSpecFromVolume(&pod.Spec.Volumes[0])

	if got := plugin.GetPluginName(); got != "kubernetes.io/downward-api" {
		t.Errorf("name %q", got)
	}
	if got, err := plugin.GetVolumeName(spec); err != nil || got != "info" {
		t.Errorf("volume name %q, %v", got, err)
	}
	if got := volumesource.Describe(plugin, spec); got != "downwardAPI" {
		t.Errorf("source %q", got)
	}
	if got := volume.DependsOn(plugin, spec, pod); !slices.Equal(got, []volume.ObjectRef{volume.NewObjectRef("Pod", "default", "web")}) {
		t.Errorf("depends on %v", got)
	}

	// A change of the pod's labels shows.
	for _, value := range []string{"1", "2"} {
		pod := pod.DeepCopy()
		pod.Labels = map[string]string{"app": value}
		m, err := plugin.NewMounter(spec, pod)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(m.GetPath() + "/labels"); err != nil || string(data) != `app="`+value+`"` {
			t.Errorf("%q, %v", data, err)
		}
	}
}
