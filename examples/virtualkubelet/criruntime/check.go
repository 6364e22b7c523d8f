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
	case hasOwnUsers(pod) && (!r.has.userNamespaces || r.RootDir == ""):
		return refuse("hostUsers: false asks for a user namespace, which its container runtime does not make")
	case hasOwnUsers(pod) && r.hasNodesNetwork(pod):
		return refuse("hostUsers: false asks for a user namespace, which needs a network of the pod's own, and not the node's")
	case security != nil && security.SupplementalGroupsPolicy != nil && *security.SupplementalGroupsPolicy == v1.SupplementalGroupsPolicyStrict && !r.has.strictGroups:
		return refuse("supplementalGroupsPolicy: Strict is not known to its container runtime")
	case s.RuntimeClassName != nil && *s.RuntimeClassName != "":
		return refuse("runtimeClassName: runtime classes are not resolved")
	case s.HostnameOverride != nil:
		return refuse("hostnameOverride: pods have the names of hostname and subdomain only")
	case s.Resources != nil:
		return refuse("resources: limits of a pod as a whole are not set")
	case len(s.ResourceClaims) > 0:
		return refuse("resourceClaims: devices are not prepared")
	case s.OS != nil && s.OS.Name != v1.Linux:
		return refuse("os: it is a Linux node")
	case !r.hasNodesNetwork(pod) && !r.has.network && !r.networkCame():
		return refuse("hostNetwork: its container runtime has no network for pods (no CNI configuration)")
	}
	for _, list := range [][]v1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			if why := refusal(&list[i]); why != "" {
				return refuse(fmt.Sprintf("container %s: %s", list[i].Name, why))
			}
		}
	}
	return nil
}

// refusal says what of a container is refused; empty: nothing.
func refusal(c *v1.Container) string {
	if len(c.RestartPolicyRules) > 0 {
		return "restartPolicyRules are not followed"
	}
	if _, err := stopSignal(c); err != nil {
		return err.Error()
	}
	for _, list := range []v1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
		for name := range list {
			if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
				return "hugepages are not limited"
			}
		}
	}
	return ""
}

func (r *Runtime) hasNodesNetwork(pod *v1.Pod) bool { return r.HostNetwork || pod.Spec.HostNetwork }
