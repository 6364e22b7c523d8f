package podlife

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// QOSClass is the pod's class of service: the API server's word, or, for a pod that it has
// not seen, such as a static one, what follows from requests and limits.
func QOSClass(pod *v1.Pod) v1.PodQOSClass {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass
	}
	asks, limited := false, true
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, name := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory} {
			limit, request := c.Resources.Limits[name], c.Resources.Requests[name]
			asks = asks || !limit.IsZero() || !request.IsZero()
			limited = limited && !limit.IsZero() && (request.IsZero() || request.Equal(limit))
		}
	}
	switch {
	case !asks:
		return v1.PodQOSBestEffort
	case limited:
		return v1.PodQOSGuaranteed
	}
	return v1.PodQOSBurstable
}
