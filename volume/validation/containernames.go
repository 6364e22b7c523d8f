package validation

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// containerNames refuses two containers of one name, of whichever kind: a name
// must stand for one container.
func (c *checker) containerNames(pod *v1.Pod) {
	first := make(map[string]string)
	check := func(field, name string) {
		if other, twice := first[name]; twice {
			c.refuse(field+".name", "%q is the name of %s already; rename one", name, other)
			return
		}
		first[name] = field
	}
	for i, container := range pod.Spec.InitContainers {
		check(fmt.Sprintf("spec.initContainers[%d]", i), container.Name)
	}
	for i, container := range pod.Spec.Containers {
		check(fmt.Sprintf("spec.containers[%d]", i), container.Name)
	}
	for i, container := range pod.Spec.EphemeralContainers {
		check(fmt.Sprintf("spec.ephemeralContainers[%d]", i), container.Name)
	}
}
