package local_test

import (
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/local"
	"github.com/podvol/podvol/volume/volumetest"
)

func TestConformance(t *testing.T) {
	disk := func(readOnly bool, options ...string) func(*volumetest.Node) *volume.Spec {
		return func(n *volumetest.Node) *volume.Spec {
			s := spec(filepath.Join(n.Dir, "disk"), options...)
			s.ReadOnly = readOnly
			return s
		}
	}
	write := func(n *volumetest.Node) { n.Write(map[string]string{"disk/file": "data"}) }
	files := map[string]volumetest.File{"file": {Content: "data"}}
	volumetest.Run(t, func() volume.VolumePlugin { return local.New(local.Config{}) }, volumetest.Suite{
		Working: []volumetest.Case{
			{Name: "writable", Spec: disk(false), Prepare: write, Shared: true, Want: volumetest.Want{Files: files, Mount: &volumetest.Mount{}}},
			{Name: "read-only", Spec: disk(true, "noexec"), Prepare: write, Shared: true,
				Want: volumetest.Want{Files: files, ReadOnly: true, Mount: &volumetest.Mount{Options: []string{"ro", "noexec"}}}},
			{Name: "device", Spec: func(n *volumetest.Node) *volume.Spec {
				return volumetest.PersistentBlock(v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: filepath.Join(n.Dir, "device")}})(n)
			}, Prepare: func(n *volumetest.Node) { n.HostFiles = deviceFiles{n.HostFiles} }, Shared: true,
				NoKernel: "ordinary users have no block devices; root's are tested beside"},
		},
		Refused: []volumetest.RefusedCase{
			{Name: "missing", Spec: disk(false), Because: "does not exist"},
			{Name: "relative", Spec: volumetest.Persistent(v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "a"}}, false), Because: "local.path"},
		},
	})
}
