package kubeletapi

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The part of the kubelet's summary (k8s.io/kubelet's stats/v1alpha1) that this node
// knows: which pods it has, and since when.
type summary struct {
	Node nodeStats  `json:"node"`
	Pods []podStats `json:"pods"`
}

type nodeStats struct {
	NodeName string `json:"nodeName"`
}

type podStats struct {
	PodRef    podReference `json:"podRef"`
	StartTime metav1.Time  `json:"startTime"`
}

type podReference struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	UID       string `json:"uid"`
}

func (s *Server) summary(w http.ResponseWriter, _ *http.Request) {
	all := summary{Node: nodeStats{s.Node}, Pods: []podStats{}}
	for _, p := range s.Pods.List() {
		one := podStats{PodRef: podReference{p.Name, p.Namespace, string(p.UID)}}
		if p.Status.StartTime != nil {
			one.StartTime = *p.Status.StartTime
		}
		all.Pods = append(all.Pods, one)
	}
	reply(w, all)
}
