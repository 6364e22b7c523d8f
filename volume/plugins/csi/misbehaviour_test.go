package csi_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// The faults of real drivers at the calls of a volume's life do no harm that could be helped. Those
// at other calls have tests of their own.
func TestMisbehavingDrivers(t *testing.T) {
	for _, m := range []csitest.Misbehaviour{csitest.RepublishIsUnknown, csitest.UnpublishLeavesTarget, csitest.StageDoesNothing, csitest.InternalWhileGoingOn, csitest.NoVersion} {
		t.Run(string(m), func(t *testing.T) {
			dc := everything()
			dc.Misbehaviours = []csitest.Misbehaviour{m}
			b := newBench(t, dc, csi.Config{})
			s := pvSpec()
			err := b.setUp(s, pod("u1"), volume.MounterArgs{})
			if m == csitest.InternalWhileGoingOn {
				if b.driver.Settle(); !errors.Is(err, csi.ErrRefused) {
					t.Errorf("%v", err)
				}
				b.driver.Configure(func(c *csitest.Config) { c.Misbehaviours = nil })
				err = b.setUp(s, pod("u1"), volume.MounterArgs{})
			}
			b.must(err, b.mounter(s, pod("u1")).SetUp(t.Context(), volume.MounterArgs{}))
			b.must(b.tearDown(s, "u1"), b.setUp(s, pod("u1"), volume.MounterArgs{}), b.tearDown(s, "u1"))
			b.wantNothing()
		})
	}
}

// The second NodeUnpublishVolume of an inline volume is NotFound: then nothing is there.
func TestInlineVolumeThatIsGone(t *testing.T) {
	dc := everything()
	dc.Misbehaviours = []csitest.Misbehaviour{csitest.UnpublishedInlineIsNotFound}
	b := newBench(t, dc, csi.Config{Defaults: map[string]storagev1.CSIDriverSpec{driverName: {PodInfoOnMount: new(true),
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}}}})
	s := inlineSpec()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeUnpublishVolume"), After: true, Err: status.Error(codes.DeadlineExceeded, "late")})
	wantUncertain(t, b.tearDown(s, "u1"), true)
	remove()
	b.must(b.tearDown(s, "u1"))
	b.wantMethods("NodePublishVolume", "NodeUnpublishVolume", "NodeUnpublishVolume")
	b.wantNothing()
}

// A driver whose work goes on after its caller has given up stages a volume that nobody waits for
// any more. The teardown that follows finds it.
func TestDriverThatWorksOn(t *testing.T) {
	dc := everything()
	dc.Misbehaviours = []csitest.Misbehaviour{csitest.WorksOn}
	b := newBench(t, dc, csi.Config{})
	ctx, giveUp := context.WithCancel(t.Context())
	release := make(chan struct{})
	b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeStageVolume"), Nth: 1, Hook: giveUp, Release: release})
	s := pvSpec()
	m, err := b.plugin.NewDeviceMounter()
	b.must(err)
	err = m.MountDevice(ctx, s, "", b.devicePath(s), volume.DeviceMounterArgs{})
	if wantUncertain(t, err, true); !errors.Is(err, csi.ErrNoAnswer) {
		t.Errorf("%v", err)
	}
	if staged := b.driver.Staged(); len(staged) != 0 {
		t.Errorf("staged %v before the driver goes on", staged)
	}
	close(release)
	b.driver.Settle()
	if staged := b.driver.Staged(); len(staged) != 1 {
		t.Errorf("the driver has staged %v", staged)
	}
	b.must(b.unmountDevice(s), b.setUp(s, pod("u1"), volume.MounterArgs{}), b.tearDown(s, "u1"))
	b.wantNothing()
}
