package containerenv

import (
	"net"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// servicesOf returns the variables of the services that a pod sees, as the
// kubelet has them: the services of its namespace, unless enableServiceLinks is
// false, and the API server's in any case. A service without an address of its
// own has none.
func servicesOf(pod *v1.Pod, services []v1.Service) map[string]string {
	seen := make(map[string]*v1.Service) // by name: one of the pod's own namespace comes first
	for i := range services {
		s := &services[i]
		apiServer := s.Namespace == metav1.NamespaceDefault && s.Name == "kubernetes" && seen[s.Name] == nil
		linked := s.Namespace == pod.Namespace && (pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks)
		if hasAddress(s) && (apiServer || linked) {
			seen[s.Name] = s
		}
	}
	all := make(map[string]string)
	for _, s := range seen {
		addService(all, s)
	}
	return all
}

func hasAddress(s *v1.Service) bool {
	return s.Spec.ClusterIP != "" && s.Spec.ClusterIP != v1.ClusterIPNone
}

func addService(all map[string]string, s *v1.Service) {
	prefix := variableName(s.Name)
	all[prefix+"_SERVICE_HOST"] = s.Spec.ClusterIP
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		port := strconv.Itoa(int(p.Port))
		protocol := string(v1.ProtocolTCP)
		if p.Protocol != "" {
			protocol = string(p.Protocol)
		}
		url := strings.ToLower(protocol) + "://" + net.JoinHostPort(s.Spec.ClusterIP, port)
		if i == 0 { // also under a name without the port
			all[prefix+"_SERVICE_PORT"], all[prefix+"_PORT"] = port, url
		}
		if p.Name != "" {
			all[prefix+"_SERVICE_PORT_"+variableName(p.Name)] = port
		}
		link := prefix + "_PORT_" + port + "_" + strings.ToUpper(protocol)
		all[link], all[link+"_PROTO"], all[link+"_PORT"], all[link+"_ADDR"] = url, strings.ToLower(protocol), port, s.Spec.ClusterIP
	}
}

func variableName(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}
