package containermounts

import (
	"encoding/csv"
	"fmt"
	"strings"
)

// InexpressibleError says that a runtime has no words for a mount or device.
type InexpressibleError struct {
	// Form is where it cannot be said: "docker run -v".
	Form string
	// Volume is the pod's name of the volume, Destination where it goes.
	Volume, Destination string
	// Reason says what the runtime cannot express, and how to go on.
	Reason string
}

func (e *InexpressibleError) Error() string {
	return fmt.Sprintf("volume %q at %s cannot be given to %s: %s", e.Volume, e.Destination, e.Form, e.Reason)
}

// DockerMountArgs returns an argument --mount and its value for each mount, for
// docker run of Docker 25 or later. Values are comma separated as docker reads
// them, so that a path may contain commas, quotes and colons. Mounts inside a
// mount that is read-only, but not recursively, stay writable, as with
// Kubernetes (bind-recursive=writable; without it docker would make them
// read-only where the kernel can). An idmapped mount, or one with
// BindMountOptions, is an *[InexpressibleError].
func DockerMountArgs(mounts []Mount) ([]string, error) {
	args := make([]string, 0, 2*len(mounts))
	for _, m := range mounts {
		if err := checkDocker("docker run --mount", m); err != nil {
			return nil, err
		}
		fields := []string{"type=bind", "source=" + m.Source, "target=" + m.Destination, "bind-propagation=" + string(m.Propagation)}
		switch {
		case m.RecursiveReadOnly:
			fields = append(fields, "readonly", "bind-recursive=readonly")
		case m.ReadOnly:
			fields = append(fields, "readonly", "bind-recursive=writable")
		}
		args = append(args, "--mount", commaSeparated(fields))
	}
	return args, nil
}

// commaSeparated quotes as RFC 4180 says, which is how docker reads it.
func commaSeparated(fields []string) string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	_ = w.Write(fields) // a strings.Builder takes everything
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// DockerVolumeArgs returns an argument -v and its value for each mount, which
// is what people type. It can say less than [DockerMountArgs]: a path with a
// colon, a recursively read-only mount, an idmapped one and one with
// BindMountOptions are *[InexpressibleError] values. With Docker 25 and later, mounts inside a
// read-only one are read-only too, where the kernel can. Files are relabelled
// with what all containers share (z), or with the container's own (Z), where that
// is wanted; docker ignores it without SELinux.
func DockerVolumeArgs(mounts []Mount) ([]string, error) {
	const form = "docker run -v"
	args := make([]string, 0, 2*len(mounts))
	for _, m := range mounts {
		if err := checkDocker(form, m); err != nil {
			return nil, err
		}
		refused := &InexpressibleError{Form: form, Volume: m.Volume, Destination: m.Destination}
		if strings.Contains(m.Source+m.Destination, ":") {
			refused.Reason = "a path with a colon would be read as several fields; use --mount"
			return nil, refused
		}
		if m.RecursiveReadOnly {
			refused.Reason = "it must be recursively read-only, which -v does not promise; use --mount"
			return nil, refused
		}
		args = append(args, "-v", m.Source+":"+m.Destination+":"+dockerMode(m))
	}
	return args, nil
}

// dockerMode has the options of -v.
func dockerMode(m Mount) string {
	options := []string{string(m.Propagation)}
	if m.ReadOnly {
		options = append([]string{"ro"}, options...)
	}
	switch {
	case m.SELinuxRelabel && m.SELinuxPrivate:
		options = append(options, "Z")
	case m.SELinuxRelabel:
		options = append(options, "z")
	}
	return strings.Join(options, ",")
}

// DockerInspectMount is an element of "Mounts" in what docker inspect prints of a container,
// which is MountPoint of docker's API. Its JSON has that API's names. Mode has the options of
// -v. The API does not say whether a mount is recursively read-only.
type DockerInspectMount struct {
	Type        string
	Source      string
	Destination string
	Mode        string
	RW          bool
	Propagation string
}

// DockerInspectMounts returns a container's mounts as docker inspect shows those of a
// container that was started with [DockerVolumeArgs]. An idmapped mount, or one with
// BindMountOptions, is an *[InexpressibleError].
func DockerInspectMounts(mounts []Mount) ([]DockerInspectMount, error) {
	all := make([]DockerInspectMount, 0, len(mounts))
	for _, m := range mounts {
		if err := checkDocker("docker inspect", m); err != nil {
			return nil, err
		}
		all = append(all, DockerInspectMount{Type: "bind", Source: m.Source, Destination: m.Destination, Mode: dockerMode(m),
			RW: !m.ReadOnly, Propagation: string(m.Propagation)})
	}
	return all, nil
}

// checkDocker refuses what docker has no words for in either form.
func checkDocker(form string, m Mount) error {
	refused := &InexpressibleError{Form: form, Volume: m.Volume, Destination: m.Destination}
	switch {
	case len(m.UIDMappings) > 0 || len(m.GIDMappings) > 0:
		refused.Reason = "docker makes no idmapped mounts; run the pod without a user namespace"
	case len(m.BindMountOptions) > 0:
		refused.Reason = "docker binds without options like " + m.BindMountOptions[0] + "; remove bindMountOptions from the pod"
	default:
		return nil
	}
	return refused
}

// DockerDeviceArgs returns an argument --device and its value for each device.
// A path with a colon is an *[InexpressibleError].
func DockerDeviceArgs(devices []Device) ([]string, error) {
	args := make([]string, 0, 2*len(devices))
	for _, d := range devices {
		if strings.Contains(d.Source+d.Destination, ":") {
			return nil, &InexpressibleError{Form: "docker run --device", Volume: d.Volume, Destination: d.Destination, Reason: "a path with a colon would be read as several fields; choose another devicePath"}
		}
		args = append(args, "--device", d.Source+":"+d.Destination+":"+d.Permissions)
	}
	return args, nil
}
