package containermounts

import (
	"slices"

	"github.com/podvol/podvol/mount"
)

// CRIMount is an element of "mounts" in a CRI ContainerConfig (runtime.v1 of
// Kubernetes 1.30 and later; mount_options, of 1.37 and later, are for runtimes
// that say that they know them). Its JSON has the names of the protocol's fields
// and the enumeration's numbers, which protojson reads as well as crictl.
type CRIMount struct {
	ContainerPath     string         `json:"container_path"`
	HostPath          string         `json:"host_path"`
	Readonly          bool           `json:"readonly,omitempty"`
	SELinuxRelabel    bool           `json:"selinux_relabel,omitempty"`
	Propagation       CRIPropagation `json:"propagation,omitempty"`
	UIDMappings       []CRIIDMapping `json:"uidMappings,omitempty"`
	GIDMappings       []CRIIDMapping `json:"gidMappings,omitempty"`
	RecursiveReadOnly bool           `json:"recursive_read_only,omitempty"`
	MountOptions      []string       `json:"mount_options,omitempty"`
}

// CRIPropagation is CRI's MountPropagation.
type CRIPropagation int32

// The propagations, under the protocol's names.
const (
	CRIPropagationPrivate         CRIPropagation = 0 // PROPAGATION_PRIVATE
	CRIPropagationHostToContainer CRIPropagation = 1 // PROPAGATION_HOST_TO_CONTAINER
	CRIPropagationBidirectional   CRIPropagation = 2 // PROPAGATION_BIDIRECTIONAL
)

// CRIIDMapping maps ids between a container and the host.
type CRIIDMapping struct {
	HostID      uint32 `json:"host_id"`
	ContainerID uint32 `json:"container_id"`
	Length      uint32 `json:"length"`
}

// CRIDevice is an element of "devices" in a CRI ContainerConfig.
type CRIDevice struct {
	ContainerPath string `json:"container_path"`
	HostPath      string `json:"host_path"`
	Permissions   string `json:"permissions"`
}

// CRIMounts returns the mounts for a CRI ContainerConfig. The runtime finds out
// itself which flags of the source it must keep.
func CRIMounts(mounts []Mount) []CRIMount {
	all := make([]CRIMount, 0, len(mounts))
	for _, m := range mounts {
		all = append(all, CRIMount{
			ContainerPath: m.Destination, HostPath: m.Source, Readonly: m.ReadOnly, RecursiveReadOnly: m.RecursiveReadOnly,
			SELinuxRelabel: m.SELinuxRelabel, Propagation: criPropagation(m.Propagation),
			MountOptions: slices.Clone(m.BindMountOptions),
			UIDMappings:  criMappings(m.UIDMappings), GIDMappings: criMappings(m.GIDMappings),
		})
	}
	return all
}

func criPropagation(p mount.Propagation) CRIPropagation {
	switch p {
	case mount.PropagationSlave:
		return CRIPropagationHostToContainer
	case mount.PropagationShared:
		return CRIPropagationBidirectional
	}
	return CRIPropagationPrivate
}

func criMappings(mappings []mount.IDMapping) (all []CRIIDMapping) {
	for _, m := range mappings {
		all = append(all, CRIIDMapping{HostID: m.HostID, ContainerID: m.ContainerID, Length: m.Size})
	}
	return all
}

// CRIDevices returns the devices for a CRI ContainerConfig.
func CRIDevices(devices []Device) []CRIDevice {
	all := make([]CRIDevice, 0, len(devices))
	for _, d := range devices {
		all = append(all, CRIDevice{ContainerPath: d.Destination, HostPath: d.Source, Permissions: d.Permissions})
	}
	return all
}
