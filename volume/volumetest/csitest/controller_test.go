package csitest_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/podvol/podvol/volume/volumetest/csitest"
)

func (b *bench) create(name string, bytes, limit int64) (*csi.Volume, error) {
	r, err := b.controller.CreateVolume(patience(b.t), &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes, LimitBytes: limit},
		VolumeCapabilities: []*csi.VolumeCapability{mountCapability("")}})
	return r.GetVolume(), err
}

func TestCreateAndDelete(t *testing.T) {
	b := newBench(t, staged())
	first, err := b.create("pvc-1", 1<<20, 0)
	b.must(err)
	again, err := b.create("pvc-1", 1<<20, 0)
	b.must(err)
	if first.VolumeId != again.VolumeId || first.CapacityBytes != 1<<20 {
		t.Errorf("%v, and again %v", first, again)
	}
	for name, tc := range map[string]struct {
		name         string
		bytes, limit int64
		want         codes.Code
	}{
		"no name":             {"", 1, 0, codes.InvalidArgument},
		"another size":        {"pvc-1", 1 << 21, 0, codes.AlreadyExists},
		"smaller limit":       {"pvc-1", 1 << 10, 1 << 10, codes.AlreadyExists},
		"more than its limit": {"pvc-2", 2, 1, codes.OutOfRange},
		"more than there is":  {"pvc-2", 1 << 50, 0, codes.OutOfRange},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.create(tc.name, tc.bytes, tc.limit)
			b.wantCode(err, tc.want)
		})
	}
	for range 2 {
		_, err := b.controller.DeleteVolume(patience(t), &csi.DeleteVolumeRequest{VolumeId: first.VolumeId})
		b.must(err)
	}
	if ids, err := b.driver.Volumes(); len(ids) > 0 || err != nil {
		t.Errorf("volumes %v, %v", ids, err)
	}
}

// What is created depends on its use, and has only the mutable parameters of this driver.
func TestCreateForItsUse(t *testing.T) {
	c := staged()
	c.BlockDisk, c.Mutable = csitest.File, []string{"colour"}
	b := newBench(t, c)
	create := func(name string, use *csi.VolumeCapability, mutable string) (string, error) {
		r, err := b.controller.CreateVolume(patience(t), &csi.CreateVolumeRequest{
			Name: name, VolumeCapabilities: []*csi.VolumeCapability{use}, MutableParameters: map[string]string{mutable: "1"}})
		return r.GetVolume().GetVolumeContext()["disk"], err
	}
	for want, use := range map[csitest.Disk]*csi.VolumeCapability{csitest.Directory: mountCapability(""), csitest.File: blockCapability()} {
		disk, err := create(string(want), use, "colour")
		if b.must(err); disk != string(want) {
			t.Errorf("disk %q, not %q", disk, want)
		}
	}
	_, err := create("other", mountCapability(""), "iops")
	b.wantCode(err, codes.InvalidArgument)
}

// A copy has what was written until then, and is a volume of its own.
func TestClones(t *testing.T) {
	for _, disk := range []csitest.Disk{csitest.Directory, csitest.File} {
		t.Run(string(disk), func(t *testing.T) {
			c := staged()
			c.Disk = disk
			b := newBench(t, c)
			use, name := mountCapability(""), "file"
			if disk == csitest.File {
				use, name = blockCapability(), ""
			}
			data, err := b.driver.AddVolume("source", 1<<20, disk)
			b.must(err, os.WriteFile(filepath.Join(data, name), []byte("then"), 0o600))
			clone := func(from string, bytes int64) (*csi.Volume, error) {
				r, err := b.controller.CreateVolume(patience(t), &csi.CreateVolumeRequest{
					Name: "copy", VolumeCapabilities: []*csi.VolumeCapability{use}, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes},
					VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: from}}}})
				return r.GetVolume(), err
			}
			_, err = clone("none", 0)
			b.wantCode(err, codes.NotFound)
			_, err = clone("source", 1<<10)
			b.wantCode(err, codes.OutOfRange)
			for range 2 {
				made, err := clone("source", 0)
				b.must(err)
				if made.CapacityBytes != 1<<20 || made.ContentSource.GetVolume().GetVolumeId() != "source" {
					t.Errorf("made %v", made)
				}
				b.must(os.WriteFile(filepath.Join(data, name), []byte("late"), 0o600)) // the second call changes nothing
				copied, err := b.driver.Data(made.VolumeId)
				b.must(err)
				if text, err := os.ReadFile(filepath.Join(copied, name)); err != nil || string(text[:4]) != "then" {
					t.Errorf("the copy has %q, %v", text, err)
				}
			}
		})
	}
}

func TestListsArePaged(t *testing.T) {
	b := newBench(t, staged())
	for _, id := range []string{"a", "b", "c"} {
		b.add(id, csitest.Directory)
	}
	var ids []string
	for token := ""; ; {
		r, err := b.controller.ListVolumes(patience(t), &csi.ListVolumesRequest{MaxEntries: 2, StartingToken: token})
		b.must(err)
		for _, e := range r.Entries {
			ids = append(ids, e.Volume.VolumeId)
		}
		if token = r.NextToken; token == "" {
			break
		}
	}
	if slices.Sort(ids); !slices.Equal(ids, []string{"a", "b", "c"}) {
		t.Errorf("volumes %v", ids)
	}
	_, err := b.controller.ListVolumes(patience(t), &csi.ListVolumesRequest{StartingToken: "mine"})
	b.wantCode(err, codes.Aborted)
	r, err := b.controller.GetCapacity(patience(t), &csi.GetCapacityRequest{})
	if b.must(err); r.AvailableCapacity != 1<<40-3*64<<20 {
		t.Errorf("%d bytes are left", r.AvailableCapacity)
	}
}

func TestAttachingKeepsItsLimit(t *testing.T) {
	c := staged()
	c.Capabilities.Attach, c.MaxVolumesPerNode = true, 1
	b := newBench(t, c)
	b.add("v1", csitest.Directory)
	b.add("v2", csitest.Directory)
	attach := func(id, node string) error {
		_, err := b.controller.ControllerPublishVolume(patience(t), &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: mountCapability("")})
		return err
	}
	b.must(attach("v1", "node1"), attach("v1", "node1"))
	b.wantCode(attach("v2", "node1"), codes.ResourceExhausted)
	b.wantCode(attach("v1", "other"), codes.NotFound)
	if attached := b.driver.Attached(); !slices.Equal(attached, []string{"v1"}) {
		t.Errorf("attached %v", attached)
	}
	for range 2 {
		_, err := b.controller.ControllerUnpublishVolume(patience(t), &csi.ControllerUnpublishVolumeRequest{VolumeId: "v1"})
		b.must(err)
	}
	b.must(attach("v2", "node1"))
}

// A volume goes from one node to another with its data. While the first one has it, it is
// refused to the second one, and what the first one does late takes nothing from the second.
func TestTwoNodes(t *testing.T) {
	c := staged()
	c.Capabilities.Attach, c.MaxVolumesPerNode = true, 1
	b := newBench(t, c)
	if err := b.driver.StartNode("node1", filepath.Join(b.dir, "again")); err == nil {
		t.Error("a node is started twice")
	}
	other, ctx, use := b.furtherNode("node2"), patience(t), mountCapability("")
	info, err := other.node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if b.must(err); info.NodeId != "node2" {
		t.Errorf("it is told to be %q", info.NodeId)
	}
	b.add("v1", csitest.Directory)
	b.add("v2", csitest.Directory)
	attach := func(id, node string) error {
		_, err := b.controller.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: use})
		return err
	}
	detach := func(node string) error {
		_, err := other.controller.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: "v1", NodeId: node})
		return err
	}
	b.must(attach("v1", "node1"), attach("v2", "node2"), b.stage(ctx, "v1", use), b.publish(ctx, "v1", use))
	b.must(os.WriteFile(filepath.Join(b.target(), "file"), []byte("data"), 0o600))
	b.wantCode(attach("v1", "node2"), codes.FailedPrecondition)
	b.wantCode(other.stage(ctx, "v1", use), codes.FailedPrecondition)
	b.wantViolations(2)
	_, err = b.controller.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: "v2", NodeId: "node2"})
	b.must(err, b.unpublish(ctx, "v1"), b.unstage(ctx, "v1"), detach("node1"), attach("v1", "node2"))
	b.must(other.stage(ctx, "v1", use), detach("node1"), b.unstage(ctx, "v1"), other.publish(ctx, "v1", use))
	if data, err := os.ReadFile(filepath.Join(other.target(), "file")); string(data) != "data" || err != nil {
		t.Errorf("the second node has %q, %v", data, err)
	}
	b.wantCode(detach("node2"), codes.FailedPrecondition)
	b.wantViolations(3)
	b.driver.Kill()
	if err := other.stage(ctx, "v1", use); err == nil {
		t.Error("the second node's driver outlives the first one's")
	}
	if err := b.driver.StartNode("node2", other.socket); err == nil {
		t.Error("a node of a driver that is not running is started")
	}
}

func TestWhatTheDriverTells(t *testing.T) {
	c := staged()
	c.MaxVolumesPerNode, c.Topology, c.NodeID = 7, map[string]string{"zone": "a"}, "n7"
	b := newBench(t, c)
	ctx := patience(t)
	info, err := b.node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if b.must(err); info.NodeId != "n7" || info.MaxVolumesPerNode != 7 || info.AccessibleTopology.Segments["zone"] != "a" {
		t.Errorf("%v", info)
	}
	can, err := b.node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if b.must(err); len(can.Capabilities) != 7 {
		t.Errorf("%v", can)
	}
	b.add("v1", csitest.Directory)
	b.must(b.stage(ctx, "v1", mountCapability("")))
	stats, err := b.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "v1", VolumePath: b.staging(false)})
	if b.must(err); len(stats.Usage) != 2 || stats.Usage[0].Total == 0 || stats.Usage[1].Total == 0 {
		t.Errorf("%v", stats)
	}
	_, err = b.node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "v1", VolumePath: b.target()})
	b.wantCode(err, codes.NotFound)
	group := mountCapability("")
	group.GetMount().VolumeMountGroup = strconv.Itoa(os.Getgid()) // which an ordinary user may give, too
	b.must(b.stage(ctx, "v1", group))
	if info, err := os.Stat(b.staging(false)); err != nil || info.Mode()&os.ModeSetgid == 0 {
		t.Errorf("given to a group it is %v, %v", info, err)
	}
}

func TestBadRequests(t *testing.T) {
	b := newBench(t, staged())
	b.add("v1", csitest.Directory)
	ctx := patience(t)
	b.wantCode(b.stage(ctx, "none", mountCapability("")), codes.NotFound)
	b.wantCode(b.stage(ctx, "", mountCapability("")), codes.InvalidArgument)
	b.wantCode(b.stage(ctx, "v1", nil), codes.InvalidArgument)
	b.wantCode(b.stage(ctx, "v1", &csi.VolumeCapability{}), codes.InvalidArgument)
	b.wantCode(b.stage(ctx, "v1", blockCapability()), codes.InvalidArgument)
	if _, err := b.driver.AddVolume("tape", 0, "tape"); err == nil {
		t.Error("a disk of an unknown kind")
	}
	b.driver.Configure(func(c *csitest.Config) { c.Capabilities.SingleNodeMultiWriter, c.CreateOnUse = false, true })
	multi := mountCapability("")
	multi.AccessMode.Mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	b.wantCode(b.stage(ctx, "v1", multi), codes.InvalidArgument)
	b.must(b.stage(ctx, "made/when\nused", mountCapability("")))
	b.wantViolations(0)
}
