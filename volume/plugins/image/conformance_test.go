package image_test

import (
	"archive/tar"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/ociimage"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/image"
	"github.com/podvol/podvol/volume/volumetest"
)

// A suite's images are in a layout of the test's own: each node's plugin reads the same.
func TestConformance(t *testing.T) {
	layout := filepath.Join(t.TempDir(), "layout")
	var images ociimage.Registry
	images.Add("web:1",
		ociimage.Layer{Entries: []ociimage.Entry{{Name: "etc/", Type: tar.TypeDir, Mode: 0o750}, {Name: "etc/motd", Content: "hello"}, {Name: "gone", Content: "x"}}},
		ociimage.Layer{Entries: []ociimage.Entry{{Name: ".wh.gone"}, {Name: "bin/run", Content: "#!", Mode: 0o4755}}})
	images.Add("model:1", ociimage.Layer{Blob: []byte("weights"), Title: "model/weights.bin", MediaType: "application/octet-stream"})
	images.Add("bad:1", ociimage.Layer{Entries: []ociimage.Entry{{Name: "../out", Content: "x"}}})
	images.WriteLayout(t, layout, "registry.test")

	source := func(name string, policy v1.PullPolicy) func(*volumetest.Node) *volume.Spec {
		return volumetest.Inline(v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: name, PullPolicy: policy}})
	}
	options := &volumetest.Mount{Options: []string{"ro", "nosuid", "nodev", "noexec"}}
	volumetest.Run(t, func() volume.VolumePlugin {
		return image.New(image.Config{Layouts: []string{layout}, ReservePercent: -1, UnusedBytes: -1, UnusedFor: -1})
	}, volumetest.Suite{
		Working: []volumetest.Case{
			{Name: "image", Spec: source("registry.test/web:1", ""), Shared: true, Want: volumetest.Want{Exact: true, ReadOnly: true, Mount: options,
				Files: map[string]volumetest.File{"etc/motd": {Content: "hello", Mode: 0o644}, "bin/run": {Content: "#!", Mode: 0o755}}}},
			{Name: "artifact", Spec: source("registry.test/model:1", v1.PullNever), Shared: true, Want: volumetest.Want{Exact: true, ReadOnly: true, Mount: options,
				Files: map[string]volumetest.File{"model/weights.bin": {Content: "weights", Mode: 0o444}}}},
		},
		Refused: []volumetest.RefusedCase{
			{Name: "no name", Spec: source("Web:1", ""), Because: "InvalidImageName"},
			{Name: "policy", Spec: source("web:1", "Sometimes"), Because: "image.pullPolicy"},
			{Name: "not there", Spec: source("registry.test/none:1", v1.PullNever), Because: "ErrImageNeverPull"},
			{Name: "out of the layer", Spec: source("registry.test/bad:1", v1.PullNever), Because: "leads out of the layer"},
		},
	})
}
