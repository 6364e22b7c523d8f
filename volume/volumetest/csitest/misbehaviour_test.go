package csitest_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

func misbehaving(t *testing.T, m csitest.Misbehaviour) *bench {
	c := staged()
	c.Misbehaviours = []csitest.Misbehaviour{m}
	b := newBench(t, c)
	b.add("v1", csitest.Directory)
	return b
}

// Each misbehaviour shows, and a driver without it does not have it.
func TestMisbehaviours(t *testing.T) {
	c := mountCapability("")
	inline := &csi.NodePublishVolumeRequest{VolumeId: "csi-1", VolumeCapability: c, VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true"}}
	tests := map[csitest.Misbehaviour]func(b *bench) error{
		csitest.UnpublishedInlineIsNotFound: func(b *bench) error {
			inline.TargetPath = b.target()
			_, err := b.node.NodePublishVolume(patience(b.t), inline)
			b.must(err, b.unpublish(patience(b.t), "csi-1"))
			return b.unpublish(patience(b.t), "csi-1")
		},
		csitest.RepublishIsUnknown: func(b *bench) error {
			b.must(b.stage(patience(b.t), "v1", c), b.publish(patience(b.t), "v1", c))
			return b.publish(patience(b.t), "v1", c)
		},
		csitest.UnpublishLeavesTarget: func(b *bench) error {
			b.must(b.stage(patience(b.t), "v1", c), b.publish(patience(b.t), "v1", c), b.unpublish(patience(b.t), "v1"))
			return b.publish(patience(b.t), "v1", c)
		},
		csitest.InternalWhileGoingOn: func(b *bench) error {
			err := b.stage(patience(b.t), "v1", c)
			b.driver.Settle()
			if len(b.driver.Staged()) != 1 {
				b.t.Error("the work did not go on")
			}
			return err
		},
		csitest.NoVersion: func(b *bench) error {
			_, err := b.identity.GetPluginInfo(patience(b.t), &csi.GetPluginInfoRequest{})
			return err
		},
	}
	want := map[csitest.Misbehaviour]codes.Code{
		csitest.UnpublishedInlineIsNotFound: codes.NotFound, csitest.RepublishIsUnknown: codes.Unknown,
		csitest.UnpublishLeavesTarget: codes.Internal, csitest.InternalWhileGoingOn: codes.Internal, csitest.NoVersion: codes.Unavailable,
	}
	for m, try := range tests {
		t.Run(string(m), func(t *testing.T) {
			b := misbehaving(t, m)
			b.wantCode(try(b), want[m])
			b.wantViolations(0)
			good := misbehaving(t, "")
			good.must(try(good))
		})
	}
	elsewhere := []csitest.Misbehaviour{csitest.StageDoesNothing, csitest.WorksOn, csitest.ExpandGrowsNothing, csitest.CreatesTooLittle, csitest.CreatesEmpty, csitest.ShortensNames, csitest.DetachesInUse}
	if all := csitest.Misbehaviours(); len(all) != len(tests)+len(elsewhere) {
		t.Errorf("of %v, %d are tried", all, len(tests)+len(elsewhere))
	}
}

func TestCreatesTooLittle(t *testing.T) {
	b := misbehaving(t, csitest.CreatesTooLittle)
	r := &csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: []*csi.VolumeCapability{mountCapability("")}, CapacityRange: &csi.CapacityRange{RequiredBytes: 4 << 20}}
	for range 2 {
		made, err := b.controller.CreateVolume(patience(t), r)
		if b.must(err); made.Volume.CapacityBytes != 2<<20 {
			t.Errorf("made %d bytes", made.Volume.CapacityBytes)
		}
	}
}

func TestShortensNames(t *testing.T) {
	for m, want := range map[csitest.Misbehaviour]int{csitest.ShortensNames: 1, "": 2} {
		b := misbehaving(t, m)
		made := make(map[string]bool)
		for _, name := range []string{"pvc-1", "pvc-2"} {
			answer, err := b.controller.CreateVolume(patience(t), &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{mountCapability("")}})
			b.must(err)
			made[answer.Volume.VolumeId] = true
		}
		if len(made) != want {
			t.Errorf("%q: volumes %v", m, made)
		}
	}
}

func TestDetachesInUse(t *testing.T) {
	for m, want := range map[csitest.Misbehaviour]codes.Code{csitest.DetachesInUse: codes.OK, "": codes.FailedPrecondition} {
		b := misbehaving(t, m)
		b.driver.Configure(func(c *csitest.Config) { c.Capabilities.Attach = true })
		_, err := b.controller.ControllerPublishVolume(patience(t), &csi.ControllerPublishVolumeRequest{VolumeId: "v1", NodeId: "node1", VolumeCapability: mountCapability("")})
		b.must(err, b.stage(patience(t), "v1", mountCapability("")))
		_, err = b.controller.ControllerUnpublishVolume(patience(t), &csi.ControllerUnpublishVolumeRequest{VolumeId: "v1"})
		b.wantCode(err, want)
		b.must(b.publish(patience(t), "v1", mountCapability(""))) // also where it is not attached
	}
}

func TestStageDoesNothing(t *testing.T) {
	b := misbehaving(t, csitest.StageDoesNothing)
	ctx, c := patience(t), mountCapability("")
	b.must(b.stage(ctx, "v1", c))
	if staged := b.driver.Staged(); len(staged) > 0 {
		t.Errorf("staged %v", staged)
	}
	b.must(b.publish(ctx, "v1", c), os.WriteFile(filepath.Join(b.target(), "file"), nil, 0o600), b.unpublish(ctx, "v1"), b.unstage(ctx, "v1"))
}

// The work of a call whose caller has given up is done all the same, unless the driver
// dies.
func TestWorksOn(t *testing.T) {
	for _, killed := range []bool{false, true} {
		b := misbehaving(t, csitest.WorksOn)
		began, release := make(chan struct{}), make(chan struct{})
		b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeStageVolume"), Hook: func() { close(began) }, Release: release})
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan error, 1)
		go func() { answer <- b.stage(ctx, "v1", mountCapability("")) }()
		<-began
		cancel()
		b.wantCode(<-answer, codes.Canceled)
		if killed {
			b.driver.Kill()
		} else {
			close(release)
		}
		b.driver.Settle()
		if staged := len(b.driver.Staged()) == 1; staged == killed {
			t.Errorf("killed %v: staged %v", killed, staged)
		}
	}
}

func TestKernelExpandGrowsNothing(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		if !strings.HasSuffix(t.Name(), "/root") {
			t.Fatal("loop devices are root's")
		}
		c := staged()
		c.Mounter, c.Misbehaviours = host.New(host.Config{}), []csitest.Misbehaviour{csitest.ExpandGrowsNothing, csitest.CreatesTooLittle, csitest.DetachesInUse}
		b := newBench(t, c)
		b.add("v1", csitest.Loop)
		ctx := patience(t)
		b.must(b.stage(ctx, "v1", blockCapability()), b.publish(ctx, "v1", blockCapability()))
		larger := &csi.CapacityRange{RequiredBytes: 128 << 20}
		_, err := b.controller.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: "v1", CapacityRange: larger})
		b.must(err)
		_, err = b.node.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: "v1", VolumePath: b.target(), CapacityRange: larger})
		b.must(err)
		if size, err := b.driver.DeviceSize("v1"); size != 64<<20 || err != nil {
			t.Errorf("the device has %d bytes, %v", size, err)
		}
		b.must(b.unpublish(ctx, "v1"), b.unstage(ctx, "v1"))
	})
}
