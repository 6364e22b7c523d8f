package configmap_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/rendertest"
	"github.com/podvol/podvol/volume/plugins/configmap"
	"github.com/podvol/podvol/volume/volumetest"
)

func TestConformance(t *testing.T) { volumetest.Run(t, configmap.New, suite()) }

// Without a mount the files are the same.
func TestRenderedFilesAreTheSame(t *testing.T) { rendertest.Run(t, configmap.New, suite()) }

func suite() volumetest.Suite {
	source := func(name string, items ...v1.KeyToPath) v1.VolumeSource {
		return v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}, Items: items}}
	}
	return volumetest.Suite{
		Objects: []metav1.Object{&v1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "config"},
			Data:       map[string]string{"app.yaml": "level: debug\n"}, BinaryData: map[string][]byte{"logo": {0x89}},
		}},
		Working: []volumetest.Case{
			{Name: "whole", Spec: volumetest.Inline(source("config")), Want: volumetest.Want{Exact: true, ReadOnly: true, Mode: 0o755,
				Files: map[string]volumetest.File{"app.yaml": {Content: "level: debug\n", Mode: 0o644}, "logo": {Content: "\x89"}}},
				Update: func(n *volumetest.Node) {
					n.Add(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "config"}, Data: map[string]string{"app.yaml": "level: info\n"}})
				},
				Updated: map[string]volumetest.File{"app.yaml": {Content: "level: info\n", Mode: 0o644}}},
			{Name: "items", Spec: volumetest.Inline(source("config", v1.KeyToPath{Key: "app.yaml", Path: "etc/app.yaml", Mode: new(int32(0o400))})),
				Want: volumetest.Want{Exact: true, ReadOnly: true, Files: map[string]volumetest.File{"etc/app.yaml": {Content: "level: debug\n", Mode: 0o400}}}},
		},
		Refused: []volumetest.RefusedCase{
			{Name: "missing object", Spec: volumetest.Inline(source("none")), Because: "ConfigMap default/none"},
			{Name: "missing key", Spec: volumetest.Inline(source("config", v1.KeyToPath{Key: "none", Path: "p"})), Because: "none"},
			{Name: "path outside", Spec: volumetest.Inline(source("config", v1.KeyToPath{Key: "logo", Path: "../logo"})), Because: "../logo"},
		},
	}
}
