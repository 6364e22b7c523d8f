package csitest

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/table"
)

type node struct {
	csi.UnimplementedNodeServer
	d  *Driver
	id string // empty: Config.NodeID
}

// config is the driver's, on this node.
func (n node) config() Config {
	c := n.d.Config()
	c.NodeID = cmp.Or(n.id, c.NodeID)
	return c
}

// place is one staging or publishing of a volume.
type place struct {
	config     Config
	volume     *stored
	path       string
	capability *csi.VolumeCapability
	readOnly   bool
}

func (p *place) isBlock() bool { return p.capability.GetBlock() != nil }

// isMounted reports whether something is mounted at a path.
func isMounted(m mount.Interface, path string) (bool, error) {
	_, mounted, err := table.Of(m).At(path)
	if err != nil {
		return false, status.Error(codes.Internal, err.Error())
	}
	return mounted, nil
}

// internal is the answer to a failure of the driver's own.
func internal(err error) error {
	if err == nil || status.Code(err) != codes.Unknown {
		return err
	}
	return status.Error(codes.Internal, err.Error())
}

func unmountAll(ctx context.Context, m mount.Interface, path string) error {
	for {
		mounted, err := isMounted(m, path)
		if err != nil || !mounted {
			return err
		}
		if _, err := mount.Unmount(ctx, m, path, mount.UnmountOptions{}); err != nil {
			return internal(err)
		}
	}
}

func checkCapability(v *stored, c *csi.VolumeCapability, can Capabilities) error {
	mode := c.GetAccessMode().GetMode()
	fsType := c.GetMount().GetFsType()
	switch {
	case c.GetMount() == nil && c.GetBlock() == nil:
		return status.Error(codes.InvalidArgument, "volume_capability has no access type")
	case mode == csi.VolumeCapability_AccessMode_UNKNOWN:
		return status.Error(codes.InvalidArgument, "volume_capability has no access mode")
	case mode >= csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER && !can.SingleNodeMultiWriter:
		return status.Errorf(codes.InvalidArgument, "access mode %v is not known here", mode)
	case c.GetMount().GetVolumeMountGroup() != "" && !can.VolumeMountGroup:
		return status.Error(codes.InvalidArgument, "volume_mount_group is not known here")
	case c.GetBlock() != nil && v.Disk == Directory:
		return status.Error(codes.InvalidArgument, "a directory is no block device")
	case c.GetMount() != nil && v.Disk == File:
		return status.Error(codes.InvalidArgument, "a file is no file system")
	case v.Disk == Loop && !slices.Contains([]string{"", "ext4", "xfs"}, fsType):
		return status.Errorf(codes.InvalidArgument, "file system %q is not known here", fsType)
	}
	return nil
}

func (n node) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	c := n.config()
	if !c.Capabilities.Stage {
		return nil, status.Error(codes.Unimplemented, "volumes are not staged here")
	}
	p, err := n.place(c, r.VolumeId, r.VolumeContext, r.StagingTargetPath, r.VolumeCapability)
	if err != nil {
		return nil, err
	}
	if c.has(StageDoesNothing) {
		return &csi.NodeStageVolumeResponse{}, nil
	}
	if info, err := os.Stat(p.path); err != nil || !info.IsDir() {
		return nil, n.d.violated(codes.FailedPrecondition, "NodeStageVolume of %s before %s is a directory", r.VolumeId, p.path)
	}
	if err := n.stage(ctx, p); err != nil {
		return nil, internal(err)
	}
	n.d.note(func() { n.d.staged[r.VolumeId] = p.path })
	return &csi.NodeStageVolumeResponse{}, nil
}

func (n node) place(c Config, id string, context map[string]string, path string, capability *csi.VolumeCapability) (*place, error) {
	if path == "" || capability == nil {
		return nil, status.Error(codes.InvalidArgument, "the path or the volume_capability is missing")
	}
	v, err := c.need(id, context)
	if err != nil {
		return nil, err
	}
	if err := checkCapability(v, capability, c.Capabilities); err != nil {
		return nil, err
	}
	if c.Capabilities.Attach && !v.Inline && !c.has(DetachesInUse) && n.d.attachedTo(id) != c.NodeID {
		return nil, n.d.violated(codes.FailedPrecondition, "volume %s is not attached to %s", id, c.NodeID)
	}
	return &place{config: c, volume: v, path: path, capability: capability}, nil
}

// stage mounts the volume for the node.
func (n node) stage(ctx context.Context, p *place) error {
	if p.isBlock() {
		_, err := p.volume.device()
		return err
	}
	mounted, err := isMounted(p.config.Mounter, p.path)
	if err == nil && !mounted {
		err = n.mountData(ctx, p, p.path)
	}
	if err != nil {
		return err
	}
	return giveTo(p.path, p.capability.GetMount().GetVolumeMountGroup())
}

// mountData mounts the volume's own files at a directory.
func (n node) mountData(ctx context.Context, p *place, target string) error {
	flags := p.capability.GetMount().GetMountFlags()
	if p.volume.Disk == Directory {
		return bind(ctx, p.config.Mounter, p.volume.data(), target, p.readOnly)
	}
	device, err := attach(p.volume.image())
	if err != nil {
		return err
	}
	request := mount.Request{Source: device, Target: target, FSType: p.capability.GetMount().GetFsType(), Options: flags}
	if p.readOnly {
		request.Options = append(slices.Clone(flags), "ro")
	}
	n.d.mu.Lock()
	formatter := n.d.format
	n.d.mu.Unlock()
	_, err = formatter.FormatAndMount(ctx, format.Request{Request: request})
	return err
}

func bind(ctx context.Context, m mount.Interface, source, target string, readOnly bool) error {
	r := mount.Request{Source: source, Target: target, Options: []string{"bind"}}
	if readOnly {
		r.Options = append(r.Options, "ro")
	}
	return mount.Mount(ctx, m, r)
}

// giveTo gives the top of a volume to a group; empty: none.
func giveTo(dir, group string) error {
	if group == "" {
		return nil
	}
	gid, err := strconv.Atoi(group)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "volume_mount_group %q is no number", group)
	}
	if err := os.Chown(dir, -1, gid); err != nil {
		return err
	}
	return os.Chmod(dir, 0o775|os.ModeSetgid)
}

func (n node) NodeUnstageVolume(ctx context.Context, r *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	c := n.config()
	if r.VolumeId == "" || r.StagingTargetPath == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or staging_target_path is missing")
	}
	if at := n.d.publishedAt(r.VolumeId); len(at) > 0 {
		return nil, n.d.violated(codes.FailedPrecondition, "NodeUnstageVolume of %s while it is published at %s", r.VolumeId, strings.Join(at, ", "))
	}
	if err := unmountAll(ctx, c.Mounter, r.StagingTargetPath); err != nil {
		return nil, err
	}
	if at, staged := n.d.stagedAt(r.VolumeId); staged && at != r.StagingTargetPath {
		return &csi.NodeUnstageVolumeResponse{}, nil // another node has it by now
	}
	if err := c.detach(r.VolumeId); err != nil {
		return nil, internal(err)
	}
	n.d.note(func() { delete(n.d.staged, r.VolumeId) })
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// detach detaches a volume's loop devices. A directory has none, for which it need not look.
func (c *Config) detach(id string) error {
	if v, err := c.find(id); err == nil && v != nil && v.Disk == Directory {
		return nil
	}
	return detachBelow(c.dirOf(id))
}

func (n node) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	c := n.config()
	if c.Capabilities.Stage && r.StagingTargetPath == "" && r.VolumeContext["csi.storage.k8s.io/ephemeral"] != "true" {
		return nil, status.Error(codes.InvalidArgument, "staging_target_path is missing, and volume_context does not say csi.storage.k8s.io/ephemeral: an inline volume has that where its CSIDriver says podInfoOnMount")
	}
	p, err := n.place(c, r.VolumeId, r.VolumeContext, r.TargetPath, r.VolumeCapability)
	if err != nil {
		return nil, err
	}
	p.readOnly = r.Readonly
	if info, err := os.Stat(filepath.Dir(p.path)); err != nil || !info.IsDir() {
		return nil, n.d.violated(codes.FailedPrecondition, "NodePublishVolume of %s before the parent of %s is a directory", r.VolumeId, p.path)
	}
	mounted, err := isMounted(c.Mounter, p.path)
	if err != nil {
		return nil, err
	}
	if mounted && c.has(RepublishIsUnknown) {
		return nil, status.Error(codes.Unknown, "cannot format the device: it is mounted")
	}
	if !mounted {
		if err := n.checkSingleWriter(r); err != nil {
			return nil, err
		}
		if err := n.publish(ctx, p, r); err != nil {
			return nil, internal(err)
		}
	}
	n.d.note(func() { n.d.published[p.path] = r.VolumeId })
	return &csi.NodePublishVolumeResponse{}, nil
}

// checkSingleWriter refuses a second place for a volume that is one pod's.
func (n node) checkSingleWriter(r *csi.NodePublishVolumeRequest) error {
	if r.VolumeCapability.GetAccessMode().GetMode() != csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		return nil
	}
	if places := n.d.publishedAt(r.VolumeId); len(places) > 0 && !slices.Contains(places, r.TargetPath) {
		return status.Errorf(codes.FailedPrecondition, "%s is published at %s, and has one writer", r.VolumeId, places[0])
	}
	return nil
}

// publish binds the volume, or its device, for a pod.
func (n node) publish(ctx context.Context, p *place, r *csi.NodePublishVolumeRequest) error {
	if err := makeTarget(p); err != nil {
		return err
	}
	if p.isBlock() {
		device, err := p.volume.device()
		if err != nil {
			return err
		}
		return bind(ctx, p.config.Mounter, device, p.path, p.readOnly)
	}
	if p.config.Capabilities.Stage && !p.volume.Inline && !p.config.has(StageDoesNothing) {
		staged, err := isMounted(p.config.Mounter, r.StagingTargetPath)
		if err != nil {
			return err
		}
		if !staged {
			return n.d.violated(codes.FailedPrecondition, "NodePublishVolume of %s before it is staged at %q", r.VolumeId, r.StagingTargetPath)
		}
		return bind(ctx, p.config.Mounter, r.StagingTargetPath, p.path, p.readOnly)
	}
	if err := n.mountData(ctx, p, p.path); err != nil {
		return err
	}
	return giveTo(p.path, p.capability.GetMount().GetVolumeMountGroup())
}

// makeTarget makes the target, which is the driver's to make.
func makeTarget(p *place) error {
	if _, err := os.Lstat(p.path); err == nil && p.config.has(UnpublishLeavesTarget) {
		return status.Errorf(codes.Internal, "%s exists", p.path)
	}
	if !p.isBlock() {
		if err := os.Mkdir(p.path, 0o750); !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	}
	file, err := os.OpenFile(p.path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	return file.Close()
}

func (n node) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	c := n.config()
	if r.VolumeId == "" || r.TargetPath == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id or target_path is missing")
	}
	v, err := c.find(r.VolumeId)
	if err != nil {
		return nil, err
	}
	again := false
	n.d.note(func() { again = n.d.unpublish[r.VolumeId] })
	if again && v == nil && c.has(UnpublishedInlineIsNotFound) {
		return nil, status.Errorf(codes.NotFound, "there is no volume %q", r.VolumeId)
	}
	if err := unmountAll(ctx, c.Mounter, r.TargetPath); err != nil {
		return nil, err
	}
	if !c.has(UnpublishLeavesTarget) {
		if err := os.Remove(r.TargetPath); err != nil && !os.IsNotExist(err) {
			return nil, internal(err)
		}
	}
	if v != nil && v.Inline {
		if err := detachBelow(v.dir); err != nil {
			return nil, internal(err)
		}
		if err := c.remove(ctx, v); err != nil {
			return nil, err
		}
	}
	n.d.note(func() { delete(n.d.published, r.TargetPath); n.d.unpublish[r.VolumeId] = v == nil || v.Inline })
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// note changes or reads the driver's knowledge of its callers.
func (d *Driver) note(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// publishedAt returns the places where a volume is published.
func (d *Driver) publishedAt(volume string) (places []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for place, v := range d.published {
		if v == volume {
			places = append(places, place)
		}
	}
	slices.Sort(places)
	return places
}

func (d *Driver) attachedTo(volume string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.attached[volume]
}

// Staged returns the staging paths in use, by volume. The caller owns the map.
func (d *Driver) Staged() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	staged := make(map[string]string, len(d.staged))
	for volume, path := range d.staged {
		staged[volume] = path
	}
	return staged
}

// stagedAt returns where a volume is staged.
func (d *Driver) stagedAt(volume string) (path string, staged bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	path, staged = d.staged[volume]
	return path, staged
}

// Published returns the volumes that are published, by target path. The caller owns
// the map.
func (d *Driver) Published() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	published := make(map[string]string, len(d.published))
	for path, volume := range d.published {
		published[path] = volume
	}
	return published
}
