package csi_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/csi"
)

// Two programs of a machine with root directories of their own stage a volume one after the
// other: a driver detaches it when it is unstaged at any place.
func TestAVolumeIsStagedBelowOneRootDirectory(t *testing.T) {
	config := csi.Config{StagedDir: filepath.Join(t.TempDir(), "csi")}
	one := newBench(t, everything(), config)
	two := &bench{t: t, host: fakehost.New(t), driver: one.driver, socket: one.socket, config: config, drivers: one.drivers, attachments: one.attachments}
	two.host.Mounter = one.host.GetMounter()
	two.restart()
	one.must(one.mountDevice(pvSpec(), volume.DeviceMounterArgs{}))
	err := two.mountDevice(pvSpec(), volume.DeviceMounterArgs{})
	if !errors.Is(err, csi.ErrStagedElsewhere) || volume.IsUncertain(err) || !strings.Contains(err.Error(), one.host.RootDir) {
		t.Fatalf("the second one: %v", err)
	}
	if n := len(one.driver.CallsOf("NodeStageVolume")); n != 1 {
		t.Errorf("%d NodeStageVolume", n)
	}
	one.must(one.mountDevice(pvSpec(), volume.DeviceMounterArgs{}), one.unmountDevice(pvSpec()))
	two.must(two.mountDevice(pvSpec(), volume.DeviceMounterArgs{}), two.unmountDevice(pvSpec()))
	one.must(one.mountDevice(pvSpec(), volume.DeviceMounterArgs{}), one.unmountDevice(pvSpec()))
}

func TestTheDirectoryOfStagedVolumesIsAbsolute(t *testing.T) {
	if _, err := csi.New(csi.Config{StagedDir: "run"}); err == nil {
		t.Error("a relative path was taken")
	}
}
