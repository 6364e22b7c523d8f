package criruntime

import (
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
)

// security says what a container may do: its own security context goes before the pod's.
func (r *Runtime) security(l podlife.Launch, ids *idMaps, image *cri.Image) (*cri.LinuxContainerSecurityContext, error) {
	own, pod := l.Spec.SecurityContext, l.Pod.Spec.SecurityContext
	if own == nil {
		own = &v1.SecurityContext{}
	}
	if pod == nil {
		pod = &v1.PodSecurityContext{}
	}
	s := &cri.LinuxContainerSecurityContext{NamespaceOptions: r.namespaces(l.Pod, ids), SupplementalGroups: groups(l.Pod, l.Groups),
		Privileged: is(own.Privileged), ReadonlyRootfs: is(own.ReadOnlyRootFilesystem), Seccomp: seccomp(l.Pod, own), Apparmor: apparmor(pod, own),
		NoNewPrivs: own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation}
	if l.Target != "" {
		s.NamespaceOptions.Pid, s.NamespaceOptions.TargetId = cri.NamespaceMode_TARGET, l.Target
	}
	if pod.SupplementalGroupsPolicy != nil && *pod.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict {
		s.SupplementalGroupsPolicy = cri.SupplementalGroupsPolicy_Strict
	}
	s.SelinuxOptions = selinuxOptions(first(own.SELinuxOptions, pod.SELinuxOptions))
	if c := own.Capabilities; c != nil {
		s.Capabilities = &cri.Capability{AddCapabilities: names(c.Add), DropCapabilities: names(c.Drop)}
	}
	if !s.Privileged && (own.ProcMount == nil || *own.ProcMount == v1.DefaultProcMount) {
		s.MaskedPaths, s.ReadonlyPaths = hidden()
	}
	return s, identity(s, first(own.RunAsUser, pod.RunAsUser), first(own.RunAsGroup, pod.RunAsGroup), is(first(own.RunAsNonRoot, pod.RunAsNonRoot)), image)
}

// identity says as whom the container runs: as its pod says, or else as its image does.
func identity(s *cri.LinuxContainerSecurityContext, user, group *int64, notRoot bool, image *cri.Image) error {
	switch {
	case user != nil:
		s.RunAsUser = int64Value(user)
	case image.Uid != nil:
		s.RunAsUser = image.Uid
	case image.Username != "":
		s.RunAsUsername = image.Username
	}
	s.RunAsGroup = int64Value(group)
	if group != nil && s.RunAsUser == nil && s.RunAsUsername == "" {
		s.RunAsUser = &cri.Int64Value{}
	}
	switch {
	case !notRoot:
		return nil
	case s.RunAsUsername != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root", s.RunAsUsername)
	case s.RunAsUser.GetValue() == 0:
		return errors.New("container's runAsUser breaks non-root policy: it would run as root")
	}
	return nil
}

// groups are the supplemental groups of the pod's processes.
func groups(pod *v1.Pod, ofVolumes []int64) (all []int64) {
	if s := pod.Spec.SecurityContext; s != nil {
		all = append(all, s.SupplementalGroups...)
		if s.FSGroup != nil {
			all = append(all, *s.FSGroup)
		}
	}
	return append(all, ofVolumes...)
}

// seccomp is unconfined by default, as with the kubelet.
func seccomp(pod *v1.Pod, own *v1.SecurityContext) *cri.SecurityProfile {
	var p *v1.SeccompProfile
	if own != nil {
		p = own.SeccompProfile
	}
	if s := pod.Spec.SecurityContext; p == nil && s != nil {
		p = s.SeccompProfile
	}
	switch {
	case own != nil && is(own.Privileged), p == nil, p.Type == v1.SeccompProfileTypeUnconfined:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	case p.Type == v1.SeccompProfileTypeLocalhost && p.LocalhostProfile != nil:
		const profiles = "/var/lib/kubelet/seccomp" // the kubelet's, where node owners put them
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: filepath.Join(profiles, *p.LocalhostProfile)}
	}
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
}

// apparmor is the runtime's default where nothing is said: nil.
func apparmor(pod *v1.PodSecurityContext, own *v1.SecurityContext) *cri.SecurityProfile {
	p := first(own.AppArmorProfile, pod.AppArmorProfile)
	switch {
	case p == nil:
		return nil
	case p.Type == v1.AppArmorProfileTypeUnconfined:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Unconfined}
	case p.Type == v1.AppArmorProfileTypeLocalhost && p.LocalhostProfile != nil:
		return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}
	}
	return &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
}

// hidden are the paths below /proc and /sys that a container does not see, or not change,
// by the kubelet's defaults.
func hidden() (masked, readOnly []string) {
	masked = []string{"/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/interrupts", "/sys/firmware", "/sys/devices/virtual/powercap"}
	return masked, []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

func selinuxOptions(o *v1.SELinuxOptions) *cri.SELinuxOption {
	if o == nil {
		return nil
	}
	return &cri.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func isPrivileged(pod *v1.Pod) bool {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if s := list[i].SecurityContext; s != nil && is(s.Privileged) {
				return true
			}
		}
	}
	return false
}

func names(list []v1.Capability) (names []string) {
	for _, c := range list {
		names = append(names, string(c))
	}
	return names
}

func int64Value(v *int64) *cri.Int64Value {
	if v == nil {
		return nil
	}
	return &cri.Int64Value{Value: *v}
}

func is(b *bool) bool { return b != nil && *b }

func first[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}
