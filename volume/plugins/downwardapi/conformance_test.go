package downwardapi_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/rendertest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/downwardapi"
	"github.com/podvol/podvol/volume/volumetest"
)

func TestConformance(t *testing.T) { volumetest.Run(t, newPlugin, suite()) }

// Without a mount the files are the same.
func TestRenderedFilesAreTheSame(t *testing.T) { rendertest.Run(t, newPlugin, suite()) }

func newPlugin() volume.VolumePlugin { return downwardapi.New(downwardapi.Config{}) }

func suite() volumetest.Suite {
	source := func(field string) v1.VolumeSource {
		return v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
			{Path: "field", FieldRef: &v1.ObjectFieldSelector{FieldPath: field}},
			{Path: "cpus", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "main", Resource: "limits.cpu"}},
		}}}
	}
	pod := func(p *v1.Pod) {
		p.Labels = map[string]string{"app": "web"}
		p.Spec.Containers = []v1.Container{{Name: "main"}}
	}
	return volumetest.Suite{
		Working: []volumetest.Case{{
			Name: "labels and limits", Spec: volumetest.Inline(source("metadata.namespace")), Pod: pod, Want: volumetest.Want{
				Exact: true, ReadOnly: true, Mount: &volumetest.Mount{FSType: "tmpfs"}, Files: map[string]volumetest.File{
					"labels": {Content: `app="web"`, Mode: 0o644}, "field": {Content: "default"}, "cpus": {Content: "4"}}},
		}},
		Refused: []volumetest.RefusedCase{
			{Name: "unknown field", Spec: volumetest.Inline(source("metadata.colour")), Pod: pod, Because: "metadata.colour"},
			{Name: "unknown container", Spec: volumetest.Inline(source("metadata.name")), Because: "main"},
		},
	}
}
