package csitest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type controller struct {
	csi.UnimplementedControllerServer
	d *Driver
}

func (s controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	can := s.d.Config().Capabilities
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range []struct {
		has bool
		rpc csi.ControllerServiceCapability_RPC_Type
	}{
		{can.Controller, csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
		{can.Controller, csi.ControllerServiceCapability_RPC_LIST_VOLUMES},
		{can.Controller, csi.ControllerServiceCapability_RPC_GET_CAPACITY},
		{can.Attach, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME},
		{can.Expand, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME},
		{can.Clone, csi.ControllerServiceCapability_RPC_CLONE_VOLUME},
		{can.Modify, csi.ControllerServiceCapability_RPC_MODIFY_VOLUME},
		{can.SingleNodeMultiWriter, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER},
	} {
		if c.has {
			response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
				Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c.rpc}}})
		}
	}
	return response, nil
}

func (s controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	c := s.d.Config()
	bytes, limit := r.GetCapacityRange().GetRequiredBytes(), r.GetCapacityRange().GetLimitBytes()
	switch {
	case r.Name == "" || len(r.VolumeCapabilities) == 0:
		return nil, status.Error(codes.InvalidArgument, "name or volume_capabilities is missing")
	case r.VolumeContentSource != nil && (r.VolumeContentSource.GetVolume() == nil || !c.Capabilities.Clone):
		return nil, status.Error(codes.InvalidArgument, "volumes do not begin with this here")
	case limit > 0 && bytes > limit || bytes > maxBytes:
		return nil, status.Errorf(codes.OutOfRange, "%d bytes are too much", bytes)
	}
	if c.has(CreatesTooLittle) {
		bytes /= 2
	}
	if err := c.checkMutable(r.MutableParameters); err != nil {
		return nil, err
	}
	id := idOf(r.Name)
	if c.has(ShortensNames) {
		id = idOf(r.Name[:min(len(r.Name), 4)])
	}
	v, err := c.find(id)
	if err != nil {
		return nil, err
	}
	if v != nil && (v.Bytes < bytes || limit > 0 && v.Bytes > limit) {
		return nil, status.Errorf(codes.AlreadyExists, "volume %q has %d bytes", r.Name, v.Bytes)
	}
	if v == nil {
		if limit > 0 && bytes == 0 {
			bytes = min(limit, defaultBytes)
		}
		wanted := &stored{ID: id, Name: r.Name, Bytes: bytes, Mutable: r.MutableParameters}
		if slices.ContainsFunc(r.VolumeCapabilities, func(wanted *csi.VolumeCapability) bool { return wanted.GetBlock() != nil }) {
			wanted.Disk = c.BlockDisk
		}
		if err := c.begin(wanted, r.VolumeContentSource.GetVolume().GetVolumeId()); err != nil {
			return nil, err
		}
		if v, err = c.create(wanted, r.Parameters); err != nil {
			return nil, err
		}
	}
	for _, capability := range r.VolumeCapabilities {
		if err := checkCapability(v, capability, c.Capabilities); err != nil {
			return nil, err
		}
	}
	return &csi.CreateVolumeResponse{Volume: c.told(v)}, nil
}

// begin says which volume a new one is a copy of; empty: none.
func (c *Config) begin(v *stored, from string) error {
	if from == "" {
		return nil
	}
	source, err := c.need(from, nil)
	if err != nil {
		return err
	}
	v.Disk, v.From, v.Bytes = source.Disk, from, cmp.Or(v.Bytes, source.Bytes)
	if v.Bytes < source.Bytes {
		return status.Errorf(codes.OutOfRange, "the copy of %d bytes would have %d", source.Bytes, v.Bytes)
	}
	return nil
}

// told is a volume as callers see it.
func (c *Config) told(v *stored) *csi.Volume {
	told := &csi.Volume{VolumeId: v.ID, CapacityBytes: v.Bytes, VolumeContext: map[string]string{"disk": string(v.Disk)}}
	if v.From != "" && !c.has(CreatesEmpty) {
		told.ContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: v.From}}}
	}
	if len(c.Topology) > 0 {
		told.AccessibleTopology = []*csi.Topology{{Segments: c.Topology}}
	}
	return told
}

func (s controller) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	c := s.d.Config()
	if r.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	v, err := c.find(r.VolumeId)
	if v == nil || err != nil {
		return &csi.DeleteVolumeResponse{}, err
	}
	_, staged := s.d.stagedAt(r.VolumeId)
	if staged || len(s.d.publishedAt(r.VolumeId)) > 0 || s.d.attachedTo(r.VolumeId) != "" {
		return nil, s.d.violated(codes.FailedPrecondition, "DeleteVolume of %s while it is in use", r.VolumeId)
	}
	return &csi.DeleteVolumeResponse{}, c.remove(ctx, v)
}

func (s controller) ControllerPublishVolume(_ context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	c := s.d.Config()
	if !c.Capabilities.Attach {
		return nil, status.Error(codes.Unimplemented, "volumes are not attached here")
	}
	if r.NodeId == "" || r.VolumeCapability == nil {
		return nil, status.Error(codes.InvalidArgument, "node_id or volume_capability is missing")
	}
	if _, err := c.need(r.VolumeId, r.VolumeContext); err != nil {
		return nil, err
	}
	var before string
	var err error
	s.d.note(func() {
		before = s.d.attached[r.VolumeId]
		switch {
		case !s.d.knows(r.NodeId):
			err = status.Errorf(codes.NotFound, "there is no node %q", r.NodeId)
		case before == "" && c.MaxVolumesPerNode > 0 && s.d.countOn(r.NodeId) >= c.MaxVolumesPerNode:
			err = status.Errorf(codes.ResourceExhausted, "node %s has its %d volumes", r.NodeId, c.MaxVolumesPerNode)
		case before == "":
			s.d.attached[r.VolumeId] = r.NodeId
		}
	})
	if err == nil && before != "" && before != r.NodeId {
		err = s.d.violated(codes.FailedPrecondition, "ControllerPublishVolume of %s to %s while it is attached to %s", r.VolumeId, r.NodeId, before)
	}
	if err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"attached-to": r.NodeId}}, nil
}

// countOn is how many volumes are attached to a node. It is called with the lock held.
func (d *Driver) countOn(node string) (n int64) {
	for _, holder := range d.attached {
		if holder == node {
			n++
		}
	}
	return n
}

func (s controller) ControllerUnpublishVolume(_ context.Context, r *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	c := s.d.Config()
	if !c.Capabilities.Attach {
		return nil, status.Error(codes.Unimplemented, "volumes are not attached here")
	}
	if r.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	if at := s.d.attachedTo(r.VolumeId); r.NodeId != "" && at != "" && at != r.NodeId {
		return &csi.ControllerUnpublishVolumeResponse{}, nil // it is another node's
	}
	_, staged := s.d.stagedAt(r.VolumeId)
	if (staged || len(s.d.publishedAt(r.VolumeId)) > 0) && !c.has(DetachesInUse) {
		return nil, s.d.violated(codes.FailedPrecondition, "ControllerUnpublishVolume of %s while it is in use", r.VolumeId)
	}
	s.d.note(func() { delete(s.d.attached, r.VolumeId) })
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (s controller) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	c := s.d.Config()
	if r.VolumeId == "" || len(r.VolumeCapabilities) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_id or volume_capabilities is missing")
	}
	v, err := c.need(r.VolumeId, nil)
	if err != nil {
		return nil, err
	}
	for _, capability := range r.VolumeCapabilities {
		if err := checkCapability(v, capability, c.Capabilities); err != nil {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
		}
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.VolumeContext, VolumeCapabilities: r.VolumeCapabilities, Parameters: r.Parameters}}, nil
}

func (s controller) ListVolumes(_ context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	c := s.d.Config()
	all, err := c.list()
	if err != nil {
		return nil, internal(err)
	}
	first := 0
	if r.StartingToken != "" {
		if first, err = strconv.Atoi(r.StartingToken); err != nil || first < 0 || first > len(all) {
			return nil, status.Errorf(codes.Aborted, "starting_token %q is not ours", r.StartingToken)
		}
	}
	if r.MaxEntries < 0 {
		return nil, status.Error(codes.InvalidArgument, "max_entries is negative")
	}
	response, last := &csi.ListVolumesResponse{}, len(all)
	if r.MaxEntries > 0 && first+int(r.MaxEntries) < last {
		last = first + int(r.MaxEntries)
		response.NextToken = strconv.Itoa(last)
	}
	for _, v := range all[first:last] {
		response.Entries = append(response.Entries, &csi.ListVolumesResponse_Entry{Volume: c.told(v)})
	}
	return response, nil
}

func (s controller) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	c := s.d.Config()
	all, err := c.list()
	left := int64(maxBytes)
	for _, v := range all {
		left -= v.Bytes
	}
	return &csi.GetCapacityResponse{AvailableCapacity: max(left, 0)}, internal(err)
}

func (s controller) ControllerExpandVolume(_ context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	c := s.d.Config()
	if !c.Capabilities.Expand {
		return nil, status.Error(codes.Unimplemented, "volumes do not grow here")
	}
	bytes := r.GetCapacityRange().GetRequiredBytes()
	if r.CapacityRange == nil {
		return nil, status.Error(codes.InvalidArgument, "capacity_range is missing")
	}
	if bytes > maxBytes {
		return nil, status.Errorf(codes.OutOfRange, "%d bytes are too much", bytes)
	}
	v, err := c.need(r.VolumeId, nil)
	if err != nil {
		return nil, err
	}
	if bytes > v.Bytes {
		v.Bytes = bytes
		if v.Disk != Directory {
			err = setSize(v.image(), bytes)
		}
		if err == nil {
			err = c.save(v)
		}
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: v.Bytes, NodeExpansionRequired: v.Disk == Loop || c.ExpandOnNode}, internal(err)
}

func (s controller) ControllerModifyVolume(_ context.Context, r *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	c := s.d.Config()
	if !c.Capabilities.Modify {
		return nil, status.Error(codes.Unimplemented, "volumes do not change here")
	}
	v, err := c.need(r.VolumeId, nil)
	if err != nil {
		return nil, err
	}
	if err := c.checkMutable(r.MutableParameters); err != nil {
		return nil, err
	}
	if v.Mutable == nil {
		v.Mutable = make(map[string]string)
	}
	maps.Copy(v.Mutable, r.MutableParameters)
	return &csi.ControllerModifyVolumeResponse{}, internal(c.save(v))
}

func (c *Config) checkMutable(parameters map[string]string) error {
	for key := range parameters {
		if !slices.Contains(c.Mutable, key) {
			return status.Errorf(codes.InvalidArgument, "mutable parameter %q is none of %s", key, strings.Join(c.Mutable, ", "))
		}
	}
	return nil
}

// Modified returns the mutable parameters of a volume.
func (d *Driver) Modified(id string) (map[string]string, error) {
	c := d.Config()
	v, err := c.need(id, nil)
	if err != nil {
		return nil, err
	}
	return v.Mutable, nil
}

// Attached returns the volumes that are attached, in order.
func (d *Driver) Attached() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.attached))
}
