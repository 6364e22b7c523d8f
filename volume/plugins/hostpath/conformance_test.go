package hostpath_test

import (
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/volumetest"
)

func TestConformance(t *testing.T) {
	below := func(name string, kind v1.HostPathType) func(*volumetest.Node) *volume.Spec {
		return func(n *volumetest.Node) *volume.Spec { return inline(filepath.Join(n.Dir, name), kind) }
	}
	write := func(n *volumetest.Node) { n.Write(map[string]string{"there/file": "data"}) }
	files := map[string]volumetest.File{"file": {Content: "data"}}
	volumetest.Run(t, func() volume.VolumePlugin { return hostpath.New(hostpath.Config{}) }, volumetest.Suite{
		Working: []volumetest.Case{
			{Name: "directory", Spec: below("there", v1.HostPathDirectory), Prepare: write, Shared: true, Want: volumetest.Want{Files: files}},
			{Name: "created", Spec: below("new/dir", v1.HostPathDirectoryOrCreate), Shared: true, Want: volumetest.Want{Mode: 0o755}},
			{Name: "persistent", Prepare: write, Shared: true, Want: volumetest.Want{Files: files, ReadOnly: true}, Spec: func(n *volumetest.Node) *volume.Spec {
				spec := persistent(filepath.Join(n.Dir, "there"))
				spec.ReadOnly = true
				return spec
			}},
		},
		Refused: []volumetest.RefusedCase{
			{Name: "missing", Spec: below("none", v1.HostPathDirectory), Because: "does not exist"},
			{Name: "another kind", Spec: below("there", v1.HostPathFileOrCreate), Prepare: write, Because: "is a directory"},
			{Name: "relative", Spec: volumetest.Inline(v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "a/b"}}), Because: "hostPath.path"},
		},
	})
}
