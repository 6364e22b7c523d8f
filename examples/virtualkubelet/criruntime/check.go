package criruntime

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Check refuses what the runtime does not offer, or this package does not say.
func (r *Runtime) Check(pod *v1.Pod) error {
	refuse := func(what string) error {
		return fmt.Errorf("pod %s/%s cannot run on this node: %s", pod.Namespace, pod.Name, what)
	}
	s, security := &pod.Spec, pod.Spec.SecurityContext
	switch {
	case s.HostUsers != nil && !*s.HostUsers:
		return refuse("hostUsers: false asks for a user namespace, which this node does not make")
	case security != nil && security.SupplementalGroupsPolicy != nil && *security.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict && !r.has.strictGroups:
		return refuse("supplementalGroupsPolicy: Strict is not known to its container runtime")
	case s.RuntimeClassName != nil && *s.RuntimeClassName != "":
		return refuse("runtimeClassName: runtime classes are not resolved")
	case len(s.ResourceClaims) > 0:
		return refuse("resourceClaims: devices are not prepared")
	case s.OS != nil && s.OS.Name != v1.Linux:
		return refuse("os: it is a Linux node")
	case !r.hasNodesNetwork(pod) && !r.has.network && !r.networkCame():
		return refuse("hostNetwork: its container runtime has no network for pods (no CNI configuration)")
	}
	for _, list := range [][]v1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			c := &list[i]
			if len(c.RestartPolicyRules) > 0 {
				return refuse(fmt.Sprintf("container %s: restartPolicyRules are not followed", c.Name))
			}
			for name := range c.Resources.Limits {
				if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
					return refuse(fmt.Sprintf("container %s: hugepages are not limited", c.Name))
				}
			}
		}
	}
	return nil
}

func (r *Runtime) hasNodesNetwork(pod *v1.Pod) bool { return r.HostNetwork || pod.Spec.HostNetwork }
