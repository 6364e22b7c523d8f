package criruntime

import (
	"bufio"
	"cmp"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hostname is what the pod's processes are told; empty: the node's, which comes with its
// network.
func (r *Runtime) hostname(pod *v1.Pod) string {
	if r.hasNodesNetwork(pod) {
		return ""
	}
	names := r.names(pod)
	if pod.Spec.SetHostnameAsFQDN != nil && *pod.Spec.SetHostnameAsFQDN {
		return names[0]
	}
	return names[len(names)-1]
}

// names are the pod's full name, if it has one, and its short one.
func (r *Runtime) names(pod *v1.Pod) []string {
	const most = 63
	short := cmp.Or(pod.Spec.Hostname, pod.Name)
	if len(short) > most {
		short = strings.TrimRight(short[:most], "-.")
	}
	if pod.Spec.Subdomain == "" || r.ClusterDomain == "" {
		return []string{short}
	}
	return []string{strings.Join([]string{short, pod.Spec.Subdomain, pod.Namespace, "svc", r.ClusterDomain}, "."), short}
}

// wantsClusterDNS says whether the pod is to ask the cluster's name server.
func wantsClusterDNS(pod *v1.Pod) bool {
	policy := pod.Spec.DNSPolicy
	return policy == v1.DNSClusterFirst && !pod.Spec.HostNetwork || policy == v1.DNSClusterFirstWithHostNet
}

// dns is the pod's resolv.conf; nil: the node's.
func (r *Runtime) dns(pod *v1.Pod) *cri.DNSConfig {
	var config *cri.DNSConfig
	switch {
	case pod.Spec.DNSPolicy == v1.DNSNone:
		config = &cri.DNSConfig{}
	case len(r.ClusterDNS) > 0 && wantsClusterDNS(pod):
		config = &cri.DNSConfig{Servers: slices.Clone(r.ClusterDNS), Options: []string{"ndots:5"}}
		if r.ClusterDomain != "" {
			config.Searches = []string{pod.Namespace + ".svc." + r.ClusterDomain, "svc." + r.ClusterDomain, r.ClusterDomain}
		}
		config.Searches = append(config.Searches, nodesDNS().Searches...)
	case pod.Spec.DNSConfig == nil:
		return nil
	default:
		config = nodesDNS()
	}
	if own := pod.Spec.DNSConfig; own != nil {
		config.Servers = append(config.Servers, own.Nameservers...)
		config.Searches = append(config.Searches, own.Searches...)
		for _, o := range own.Options {
			option := o.Name
			if o.Value != nil {
				option += ":" + *o.Value
			}
			config.Options = slices.DeleteFunc(config.Options, func(other string) bool { name, _, _ := strings.Cut(other, ":"); return name == o.Name })
			config.Options = append(config.Options, option)
		}
	}
	return config
}

// nodesDNS is the node's resolv.conf.
func nodesDNS() *cri.DNSConfig {
	config := &cri.DNSConfig{}
	file, err := os.Open("/etc/resolv.conf")
	if err != nil {
		return config
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			config.Servers = append(config.Servers, words[1])
		case "search":
			config.Searches = words[1:]
		case "options":
			config.Options = append(config.Options, words[1:]...)
		}
	}
	return config
}
