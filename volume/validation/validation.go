// Package validation refuses pods, volumes, claims and storage classes that the API
// server would refuse. So a manifest that no API server has seen is checked before
// anything is mounted. The functions do no I/O, change nothing, and build for every
// system.
//
// Each fault is a *[volume.InvalidSpecError] with the path of the field as the
// manifest spells it.
package validation

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/volume"
)

// PodVolumes refuses a pod whose volumes the API server would refuse. It
// changes nothing. It checks:
//
//   - the pod's UID, namespace and name;
//   - its labels and annotations, because volumes show them;
//   - the volumes' names and sources;
//   - the containers' volumeMounts and volumeDevices.
//
// It does not check whether a volume's type has a plugin. testdata/validation
// lists the rules, and the rules that are stricter than the API server's.
//
// The error joins one *[volume.InvalidSpecError] for every fault (Unwrap() []error).
// Each has the field's path and the pod, and the volume if there is one. The
// error carries the mark of [volume.NothingDone].
func PodVolumes(pod *v1.Pod) error {
	if pod == nil {
		return volume.Invalid("pod", "is missing")
	}
	c := checker{faults{pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}}}
	c.segment("metadata.uid", string(pod.UID))
	c.names("metadata.name", pod.Name, validation.IsDNS1123Subdomain)
	c.names("metadata.namespace", pod.Namespace, validation.IsDNS1123Label)
	c.labelsAndAnnotations("metadata", &pod.ObjectMeta)
	volumes := c.volumes(pod)
	for i := range pod.Spec.InitContainers {
		c.container(fmt.Sprintf("spec.initContainers[%d]", i), &pod.Spec.InitContainers[i], volumes)
	}
	for i := range pod.Spec.Containers {
		c.container(fmt.Sprintf("spec.containers[%d]", i), &pod.Spec.Containers[i], volumes)
	}
	for i, e := range pod.Spec.EphemeralContainers {
		container := v1.Container(e.EphemeralContainerCommon)
		field := fmt.Sprintf("spec.ephemeralContainers[%d]", i)
		c.container(field, &container, volumes)
		c.noSubPaths(field, container.VolumeMounts)
	}
	c.containerNames(pod)
	return c.err()
}

// checker knows the API's rules.
type checker struct{ faults }

// volumes checks the pod's volumes and returns them by name.
func (c *checker) volumes(pod *v1.Pod) map[string]*v1.Volume {
	all := make(map[string]*v1.Volume, len(pod.Spec.Volumes))
	for i := range pod.Spec.Volumes {
		field := fmt.Sprintf("spec.volumes[%d]", i)
		v := &pod.Spec.Volumes[i]
		c.volume = v.Name
		c.names(field+".name", v.Name, validation.IsDNS1123Label)
		if _, twice := all[v.Name]; twice {
			c.refuse(field+".name", "%q is the name of another volume already; rename one", v.Name)
		} else {
			all[v.Name] = v
		}
		c.oneSource(field, volume.NewSpecFromVolume(v))
		c.volumeSource(field, v)
		c.ephemeralClaim(field, v, pod)
	}
	c.volume = ""
	return all
}

func (c *checker) oneSource(field string, spec *volume.Spec) {
	if types := volume.SourceTypes(spec); len(types) != 1 {
		c.refuse(field, "volume %q must have exactly one source, has %s", spec.Name(), countSources(types))
	}
}

func countSources(types []string) string {
	if len(types) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d: %s", len(types), strings.Join(types, ", "))
}
