package emptydir

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/validation"
)

// mediumOf returns the medium of a valid source. It completes "HugePages" by
// the page size that the pod's containers request.
func mediumOf(source *v1.EmptyDirVolumeSource, pod *v1.Pod) (v1.StorageMedium, error) {
	switch {
	case source.Medium == v1.StorageMediumHugePages:
		return requestedPages(pod)
	case strings.HasPrefix(string(source.Medium), string(v1.StorageMediumHugePagesPrefix)):
		return source.Medium, checkRequested(source.Medium, pod)
	}
	return source.Medium, nil
}

// checkRequested refuses pages of a size that no container requests: none may be
// given to the pod, as the kubelet refuses them.
func checkRequested(medium v1.StorageMedium, pod *v1.Pod) error {
	want, err := validation.HugePageSize("emptyDir.medium", medium)
	if err != nil {
		return err
	}
	for name := range hugePageResources(pod) {
		size, err := resource.ParseQuantity(strings.TrimPrefix(name, v1.ResourceHugePagesPrefix))
		if err == nil && size.Value() == want {
			return nil
		}
	}
	size := strings.TrimPrefix(string(medium), string(v1.StorageMediumHugePagesPrefix))
	return volume.Invalid("emptyDir.medium", "%q needs a container of the pod that requests such pages; add %s%s to its resources",
		medium, v1.ResourceHugePagesPrefix, size)
}

func requestedPages(pod *v1.Pod) (v1.StorageMedium, error) {
	var found *resource.Quantity
	for name := range hugePageResources(pod) {
		size, err := resource.ParseQuantity(strings.TrimPrefix(name, v1.ResourceHugePagesPrefix))
		if err != nil {
			return "", volume.Invalid("resources", "%q names no page size: %v", name, err)
		}
		if found != nil && found.Cmp(size) != 0 {
			return "", volume.Invalid("emptyDir.medium",
				`"HugePages" is ambiguous, the pod's containers request several page sizes; use "HugePages-<size>"`)
		}
		found = &size
	}
	if found == nil {
		return "", volume.Invalid("emptyDir.medium",
			`"HugePages" needs a container that requests huge pages, or a page size as in "HugePages-2Mi"`)
	}
	medium := v1.StorageMedium(string(v1.StorageMediumHugePagesPrefix) + found.String())
	_, err := validation.HugePageSize("emptyDir.medium", medium)
	return medium, err
}

// hugePageResources are the names of the huge page resources that the pod or
// one of its containers asks for. A limit implies a request.
func hugePageResources(pod *v1.Pod) map[string]bool {
	all := map[string]bool{}
	add := func(resources v1.ResourceRequirements) {
		for _, list := range []v1.ResourceList{resources.Requests, resources.Limits} {
			for name := range list {
				if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
					all[string(name)] = true
				}
			}
		}
	}
	for _, c := range containers(pod) {
		add(c.Resources)
	}
	if pod.Spec.Resources != nil {
		add(*pod.Spec.Resources)
	}
	return all
}
