package csitest

import (
	"cmp"
	"context"
	"os"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/blockdev"
)

func (n node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	c := n.config()
	response := &csi.NodeGetInfoResponse{NodeId: c.NodeID, MaxVolumesPerNode: c.MaxVolumesPerNode}
	if len(c.Topology) > 0 {
		response.AccessibleTopology = &csi.Topology{Segments: c.Topology}
	}
	return response, nil
}

func (n node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	can := n.d.Config().Capabilities
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range []struct {
		has bool
		rpc csi.NodeServiceCapability_RPC_Type
	}{
		{can.Stage, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
		{can.Stats, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS},
		{can.Expand, csi.NodeServiceCapability_RPC_EXPAND_VOLUME},
		{can.SingleNodeMultiWriter, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER},
		{can.VolumeMountGroup, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP},
		{can.Health, csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH},
		{can.Health, csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH},
		{can.Condition, volumeCondition},
	} {
		if c.has {
			response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
				Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c.rpc}}})
		}
	}
	return response, nil
}

// volumeCondition was VOLUME_CONDITION until CSI 1.12.
const volumeCondition = csi.NodeServiceCapability_RPC_Type(4)

func (n node) NodeGetVolumeStats(_ context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	c := n.d.Config()
	response, err := n.stats(c, r)
	if err == nil && c.Capabilities.Condition {
		addCondition(response, c.VolumeHealth[r.VolumeId])
	}
	return response, err
}

// addCondition adds field 2 of CSI 1.12's answer: a message of abnormal (1) and message (2).
func addCondition(response *csi.NodeGetVolumeStatsResponse, wrong []*csi.VolumeHealth_VolumeHealthEntry) {
	var messages []string
	for _, e := range wrong {
		messages = append(messages, e.GetMessage())
	}
	condition := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), protowire.EncodeBool(len(wrong) > 0))
	condition = protowire.AppendString(protowire.AppendTag(condition, 2, protowire.BytesType), strings.Join(messages, ", "))
	response.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), condition))
}

func (n node) stats(c Config, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if !c.Capabilities.Stats {
		return nil, status.Error(codes.Unimplemented, "volumes are not measured here")
	}
	if r.VolumeId == "" || r.VolumePath == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or volume_path is missing")
	}
	v, err := c.find(r.VolumeId)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(r.VolumePath)
	if v == nil || err != nil {
		return nil, status.Errorf(codes.NotFound, "volume %q is not at %s", r.VolumeId, r.VolumePath)
	}
	if !info.IsDir() {
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Total: v.Bytes, Unit: csi.VolumeUsage_BYTES}}}, nil
	}
	var s unix.Statfs_t
	if err := unix.Statfs(r.VolumePath, &s); err != nil {
		return nil, internal(err)
	}
	size := int64(s.Bsize)
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: int64(s.Blocks) * size, Available: int64(s.Bavail) * size, Used: int64(s.Blocks-s.Bfree) * size},
		{Unit: csi.VolumeUsage_INODES, Total: int64(s.Files), Available: int64(s.Ffree), Used: int64(s.Files - s.Ffree)},
	}}, nil
}

func (n node) NodeExpandVolume(ctx context.Context, r *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	c := n.d.Config()
	if !c.Capabilities.Expand {
		return nil, status.Error(codes.Unimplemented, "volumes do not grow here")
	}
	if r.VolumePath == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_path is missing")
	}
	v, err := c.need(r.VolumeId, nil)
	if err != nil {
		return nil, err
	}
	wanted := r.GetCapacityRange().GetRequiredBytes()
	if wanted > v.Bytes {
		return nil, status.Errorf(codes.OutOfRange, "the volume has %d bytes, ControllerExpandVolume comes first", v.Bytes)
	}
	if v.Disk == Loop && !c.has(ExpandGrowsNothing) {
		if err := n.grow(ctx, c, v, r.VolumePath); err != nil {
			return nil, internal(err)
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: v.Bytes}, nil
}

// grow makes the loop device, and the file system on it, as large as the image.
func (n node) grow(ctx context.Context, c Config, v *stored, path string) error {
	device, err := attach(v.image())
	if err != nil {
		return err
	}
	if err := resize(device); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return err
	}
	entry, mounted, err := table.Of(c.Mounter).At(path)
	if err != nil || !mounted {
		return err
	}
	n.d.mu.Lock()
	formatter := n.d.format
	n.d.mu.Unlock()
	_, err = formatter.Resize(ctx, device, entry.Target)
	return err
}

func (n node) NodeGetVolumeHealth(_ context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	c := n.d.Config()
	if !c.Capabilities.Health {
		return nil, status.Error(codes.Unimplemented, "health is not told here")
	}
	if r.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is empty")
	}
	if v, err := c.find(r.VolumeId); v == nil { // a question makes no volume
		return nil, cmp.Or(err, status.Errorf(codes.NotFound, "there is no volume %q", r.VolumeId))
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: r.VolumeId, HealthStatuses: c.VolumeHealth[r.VolumeId]}}, nil
}

func (n node) NodeGetStorageHealth(context.Context, *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	c := n.d.Config()
	if !c.Capabilities.Health {
		return nil, status.Error(codes.Unimplemented, "health is not told here")
	}
	return &csi.NodeGetStorageHealthResponse{BackendHealth: c.StorageHealth}, nil
}

// DeviceSize returns the size of a volume's loop device as it is now.
func (d *Driver) DeviceSize(volume string) (int64, error) {
	c := d.Config()
	v, err := c.need(volume, nil)
	if err != nil {
		return 0, err
	}
	devices, err := loopsBelow(v.image())
	if err != nil || len(devices) == 0 {
		return 0, err
	}
	device, err := blockdev.System{}.Open(devices[0], os.O_RDONLY)
	if err != nil {
		return 0, err
	}
	defer device.Close()
	return device.Size()
}
