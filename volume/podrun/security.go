package podrun

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/volume/containermounts"
)

// confinement is the set of rights that a container's security context takes from
// the program.
type confinement struct {
	capabilities    []string // the only ones; nil: the caller's
	noNewPrivileges bool
}

// confinementOf reads capabilities and allowPrivilegeEscalation. If any
// capabilities are dropped, a user other than root gets none. In a container,
// too, the remaining ones are only an upper limit for programs with capabilities
// of their own.
func confinementOf(pod *v1.Pod, container *v1.Container, credential *sandbox.Credential) (c confinement, err error) {
	security := container.SecurityContext
	if security == nil {
		return c, nil
	}
	c.noNewPrivileges = security.AllowPrivilegeEscalation != nil && !*security.AllowPrivilegeEscalation
	named := security.Capabilities
	if named == nil || len(named.Drop) == 0 { // there is nothing to add to what the caller has
		return c, nil
	}
	all := sandbox.CapabilityNames()
	add, err := capabilityNames(named.Add, all)
	if err == nil {
		var drop []string
		drop, err = capabilityNames(named.Drop, all)
		c.capabilities = slices.DeleteFunc(slices.Clone(all), func(name string) bool {
			return slices.Contains(drop, name) && !slices.Contains(add, name)
		})
	}
	if err != nil {
		return c, fmt.Errorf("container %q of pod %s/%s: securityContext.capabilities: %w", container.Name, pod.Namespace, pod.Name, err)
	}
	// If one name is both added and dropped, it is dropped; ALL gives way.
	c.capabilities = slices.DeleteFunc(c.capabilities, func(name string) bool { return isNamed(named.Drop, name) })
	if credential != nil && credential.UID != 0 {
		c.capabilities = []string{}
	}
	return c, nil
}

func capabilityNames(named []v1.Capability, all []string) ([]string, error) {
	var names []string
	for _, n := range named {
		name := plainCapability(n)
		switch {
		case name == "ALL":
			return all, nil
		case !slices.Contains(all, name):
			return nil, fmt.Errorf("there is no capability %q", n)
		}
		names = append(names, name)
	}
	return names, nil
}

func plainCapability(c v1.Capability) string {
	return strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_")
}

func isNamed(list []v1.Capability, name string) bool {
	return slices.ContainsFunc(list, func(c v1.Capability) bool { return plainCapability(c) == name })
}

// notHonoured returns the fields that have no effect on the program: confinement
// fields, and the field that asks for the program's mounts to appear on the
// machine, if podvol itself may not mount there.
func notHonoured(pod *v1.Pod, container *v1.Container, inUserNamespace bool) (fields []string) {
	for i, m := range container.VolumeMounts {
		if p := m.MountPropagation; inUserNamespace && p != nil && *p == v1.MountPropagationBidirectional {
			fields = append(fields, fmt.Sprintf("volumeMounts[%d].mountPropagation Bidirectional (what an ordinary user mounts does not reach the machine: run as root)", i))
		}
	}
	security, ofPod := container.SecurityContext, pod.Spec.SecurityContext
	if security == nil {
		security = &v1.SecurityContext{}
	}
	if ofPod == nil {
		ofPod = &v1.PodSecurityContext{}
	}
	if security.ReadOnlyRootFilesystem != nil && *security.ReadOnlyRootFilesystem {
		fields = append(fields, "readOnlyRootFilesystem")
	}
	seccomp := security.SeccompProfile
	if seccomp == nil {
		seccomp = ofPod.SeccompProfile
	}
	if seccomp != nil && seccomp.Type != v1.SeccompProfileTypeUnconfined {
		fields = append(fields, "seccompProfile")
	}
	appArmor := security.AppArmorProfile
	if appArmor == nil {
		appArmor = ofPod.AppArmorProfile
	}
	if appArmor != nil && appArmor.Type != v1.AppArmorProfileTypeUnconfined {
		fields = append(fields, "appArmorProfile")
	}
	return fields
}

// deviceMount shows a raw device. A bind mount, even a read-only one, does not
// prevent writes to a device (mount(8)). So a device that must not be written to
// is refused.
func deviceMount(d containermounts.Device) (sandbox.Mount, error) {
	if !strings.Contains(d.Permissions, "w") {
		return sandbox.Mount{}, fmt.Errorf("volume %q (%s) is a block volume that must not be written to, which podvol run cannot prevent: take readOnly from its claim if the program may write, or leave its volumeDevices entry out", d.Volume, d.Destination)
	}
	return sandbox.Mount{Volume: d.Volume, Source: d.Source, Destination: d.Destination, File: true}, nil
}
