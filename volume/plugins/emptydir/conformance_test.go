package emptydir_test

import (
	"io/fs"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/plugins/emptydir"
	"github.com/podvol/podvol/volume/volumetest"
)

func TestConformance(t *testing.T) {
	medium := func(m v1.StorageMedium) v1.VolumeSource {
		return v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: m}}
	}
	volumetest.Run(t, emptydir.New, volumetest.Suite{
		Working: []volumetest.Case{
			{Name: "disk", Spec: volumetest.Inline(medium("")), Want: volumetest.Want{Mode: fs.ModePerm}},
			{Name: "memory", Spec: volumetest.Inline(medium(v1.StorageMediumMemory)),
				Want: volumetest.Want{Mode: fs.ModePerm | fs.ModeSticky, Mount: &volumetest.Mount{FSType: "tmpfs"}}},
		},
		Refused: []volumetest.RefusedCase{
			{Name: "another medium", Spec: volumetest.Inline(medium("Tape")), Because: "emptyDir.medium"},
		},
	})
}
