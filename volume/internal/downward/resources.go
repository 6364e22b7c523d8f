package downward

import (
	"context"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
)

// Resource is a parsed resourceFieldRef.
type Resource struct {
	container v1.ResourceRequirements
	// pod are the pod's own resources, which a container without limits of its
	// own shares; may be nil.
	pod     *v1.ResourceRequirements
	name    v1.ResourceName
	limit   bool
	divisor resource.Quantity
}

// VolumeResource checks the resourceFieldRef of a volume's file; at is where it
// is, as errors name it. The error is a *[volume.InvalidSpecError].
func VolumeResource(at string, ref *v1.ResourceFieldSelector, pod *v1.Pod) (Resource, error) {
	if ref.ContainerName == "" {
		return Resource{}, volume.Invalid(at+".containerName", "must not be empty in a volume")
	}
	return parseResource(at, ref, pod, nil)
}

// VariableResource checks the resourceFieldRef of an environment variable of
// the container own, whose resources are meant where none is named. The error
// is a *[volume.InvalidSpecError].
func VariableResource(at string, ref *v1.ResourceFieldSelector, pod *v1.Pod, own *v1.Container) (Resource, error) {
	if ref.ContainerName != "" {
		own = nil
	}
	return parseResource(at, ref, pod, own)
}

func parseResource(at string, ref *v1.ResourceFieldSelector, pod *v1.Pod, container *v1.Container) (Resource, error) {
	if container == nil {
		var ok bool
		if container, ok = findContainer(pod, ref.ContainerName); !ok {
			return Resource{}, volume.Invalid(at+".containerName", "the pod has no container and no init container %q", ref.ContainerName)
		}
	}
	which, name, _ := strings.Cut(ref.Resource, ".")
	if (which != "limits" && which != "requests") || !isContainerResource(name) {
		return Resource{}, volume.Invalid(at+".resource",
			"%q is not limits or requests of cpu, memory, ephemeral-storage or hugepages-<size>, such as limits.cpu", ref.Resource)
	}
	r := Resource{container: container.Resources, pod: pod.Spec.Resources, name: v1.ResourceName(name), limit: which == "limits"}
	var err error
	r.divisor, err = parseDivisor(at+".divisor", ref.Divisor, r.name)
	return r, err
}

func findContainer(pod *v1.Pod, name string) (*v1.Container, bool) {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i], true
			}
		}
	}
	return nil, false
}

func isContainerResource(name string) bool {
	switch v1.ResourceName(name) {
	case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage:
		return true
	}
	size, ok := strings.CutPrefix(name, v1.ResourceHugePagesPrefix)
	if !ok {
		return false
	}
	_, err := resource.ParseQuantity(size)
	return err == nil
}

// parseDivisor returns the unit of the result; zero means 1.
func parseDivisor(at string, given resource.Quantity, name v1.ResourceName) (resource.Quantity, error) {
	if given.IsZero() {
		return *resource.NewQuantity(1, resource.DecimalSI), nil
	}
	allowed := []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
	if name == v1.ResourceCPU {
		allowed = []string{"1", "1m"}
	}
	divisor := given.DeepCopy() // reading a quantity may write to it
	if text := divisor.String(); !slices.Contains(allowed, text) {
		return divisor, volume.Invalid(at, "%s is not one of %s, the units of %s", text, strings.Join(allowed, ", "), name)
	}
	return divisor, nil
}

// Value is the resource in units of the divisor, rounded up. Only a limit that
// neither container nor pod sets needs the host's allocatable resources, and
// the role that knows them.
func (r *Resource) Value(ctx context.Context, host volume.VolumeHost) (string, error) {
	quantity, err := r.quantity(ctx, host)
	if err != nil {
		return "", err
	}
	if r.name == v1.ResourceCPU {
		return ceil(quantity.MilliValue(), r.divisor.MilliValue()), nil
	}
	return ceil(quantity.Value(), r.divisor.Value()), nil
}

func (r *Resource) quantity(ctx context.Context, host volume.VolumeHost) (resource.Quantity, error) {
	limit, limited := r.limits()
	if !r.limit {
		// The API makes a limit the request where there is none.
		if request, ok := r.container.Requests[r.name]; ok || !limited {
			return request, nil
		}
		return limit, nil
	}
	if limited || strings.HasPrefix(string(r.name), v1.ResourceHugePagesPrefix) {
		return limit, nil // huge pages are never overcommitted: no limit is none
	}
	role, err := volume.Role[volume.AllocatableGetter](host)
	if err != nil {
		return limit, err
	}
	allocatable, err := role.GetAllocatable(ctx)
	return allocatable[r.name], err
}

func (r *Resource) limits() (resource.Quantity, bool) {
	if limit, ok := r.container.Limits[r.name]; ok && !limit.IsZero() {
		return limit, true
	}
	if r.pod == nil || !r.limit {
		return resource.Quantity{}, false
	}
	limit, ok := r.pod.Limits[r.name]
	return limit, ok && !limit.IsZero()
}

func ceil(n, unit int64) string {
	quotient := n / unit
	if n%unit > 0 {
		quotient++
	}
	return strconv.FormatInt(quotient, 10)
}
