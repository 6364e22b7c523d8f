package containermounts

import (
	"slices"

	"github.com/podvol/podvol/mount"
)

// OCIMount is an element of "mounts" in a bundle's config.json (OCI runtime
// specification 1.2).
type OCIMount struct {
	Destination string         `json:"destination"`
	Type        string         `json:"type,omitempty"`
	Source      string         `json:"source,omitempty"`
	Options     []string       `json:"options,omitempty"`
	UIDMappings []OCIIDMapping `json:"uidMappings,omitempty"`
	GIDMappings []OCIIDMapping `json:"gidMappings,omitempty"`
}

// OCIIDMapping maps ids between a container and the host.
type OCIIDMapping struct {
	ContainerID uint32 `json:"containerID"`
	HostID      uint32 `json:"hostID"`
	Size        uint32 `json:"size"`
}

// OCIDevice is an element of "linux.devices": a device that the runtime makes.
type OCIDevice struct {
	Path     string `json:"path"`
	Type     string `json:"type"`
	Major    int64  `json:"major"`
	Minor    int64  `json:"minor"`
	FileMode uint32 `json:"fileMode"` // permission bits
	UID      uint32 `json:"uid"`
	GID      uint32 `json:"gid"`
}

// OCIDeviceRule is an element of "linux.resources.devices": what the container
// may do with a device.
type OCIDeviceRule struct {
	Allow  bool   `json:"allow"`
	Type   string `json:"type"`
	Major  int64  `json:"major"`
	Minor  int64  `json:"minor"`
	Access string `json:"access"`
}

// OCIMounts returns the mounts for a bundle's config.json. Binds are recursive,
// as Kubernetes' are, and repeat the flags of their source, which a runtime
// that sets one flag would lose otherwise. Options of the pod's own are added, so
// that [RuntimeFeatures].BindMountOptions may be set.
func OCIMounts(mounts []Mount) []OCIMount {
	all := make([]OCIMount, 0, len(mounts))
	for _, m := range mounts {
		all = append(all, OCIMount{
			Destination: m.Destination, Type: "bind", Source: m.Source, Options: ociOptions(m),
			UIDMappings: ociMappings(m.UIDMappings), GIDMappings: ociMappings(m.GIDMappings),
		})
	}
	return all
}

func ociOptions(m Mount) []string {
	options := []string{"rbind", string(m.Propagation)}
	switch {
	case m.RecursiveReadOnly:
		options = append(options, "rro")
	case m.ReadOnly:
		options = append(options, "ro")
	}
	for _, flag := range m.Locked {
		if flag != "ro" { // which ReadOnly says as well
			options = append(options, flag)
		}
	}
	for _, o := range m.BindMountOptions {
		if !slices.Contains(m.Locked, o) {
			options = append(options, o)
		}
	}
	if len(m.UIDMappings) > 0 || len(m.GIDMappings) > 0 {
		options = append(options, "idmap")
	}
	return options
}

func ociMappings(mappings []mount.IDMapping) (all []OCIIDMapping) {
	for _, m := range mappings {
		all = append(all, OCIIDMapping(m))
	}
	return all
}
