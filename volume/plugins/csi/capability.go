package csi

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/csiclass"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// volumeRequest is how a volume is to be staged and published.
type volumeRequest struct {
	spec       *volume.Spec
	source     *source
	driverSpec *driverSpec
	group      *int64 // the pod's fsGroup
	label      string // to mount with
}

// accessMode is the volume's first, as the kubelet has it.
func (w *volumeRequest) accessMode(s *drivers.Session) (csi.VolumeCapability_AccessMode_Mode, error) {
	mode := v1.ReadWriteOnce
	if pv := w.spec.PersistentVolume; pv != nil && len(pv.Spec.AccessModes) > 0 {
		mode = pv.Spec.AccessModes[0]
	}
	return drivers.AccessMode(mode, s.Has(csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER))
}

// capability is what drivers call so: access mode, and file system or device.
func (w *volumeRequest) capability(s *drivers.Session) (*csi.VolumeCapability, error) {
	mode, err := w.accessMode(s)
	if err != nil {
		return nil, err
	}
	c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
	if w.spec.IsBlock() {
		c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return c, nil
	}
	if err := csiclass.CheckFSType("csi.fsType", w.source.FSType); err != nil {
		return nil, err
	}
	m := &csi.VolumeCapability_MountVolume{FsType: w.source.FSType, MountFlags: w.mountFlags()}
	if w.group != nil && s.Has(csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		m.VolumeMountGroup = strconv.FormatInt(*w.group, 10)
	}
	c.AccessType = &csi.VolumeCapability_Mount{Mount: m}
	return c, nil
}

func (w *volumeRequest) mountFlags() []string {
	var flags []string
	if pv := w.spec.PersistentVolume; pv != nil {
		flags = slices.Clone(pv.Spec.MountOptions)
	}
	if w.label != "" && w.driverSpec.seLinuxMount {
		flags = append(flags, fmt.Sprintf("context=%q", w.label))
	}
	return flags
}

// readOnly is what the pod asks for, which NodePublishVolume is told.
func (w *volumeRequest) readOnly() bool {
	if w.source.Inline {
		return w.source.ReadOnly
	}
	return w.spec.ReadOnly
}

// ownsFiles reports whether podvol gives the files to the pod's fsGroup; else the driver
// does, or nobody.
func (w *volumeRequest) ownsFiles(s *drivers.Session) bool {
	if w.group == nil || w.readOnly() || s.Has(csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP) {
		return false
	}
	switch w.driverSpec.fsGroup {
	case storagev1.FileFSGroupPolicy:
		return true
	case storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy:
		return w.source.FSType != "" && w.writesOnce()
	}
	return false
}

func (w *volumeRequest) writesOnce() bool {
	if w.source.Inline {
		return true
	}
	modes := w.spec.PersistentVolume.Spec.AccessModes
	return slices.Contains(modes, v1.ReadWriteOnce) || slices.Contains(modes, v1.ReadWriteOncePod)
}
