package volume

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/util/kubeapi"
)

// ValidatePodVolumes refuses a pod whose volumes the API server would refuse,
// before anything is touched: identity (UID, namespace, name), the volumes'
// names and sources, and the containers' volumeMounts and volumeDevices. That
// a volume's type has no plugin is not looked at here.
//
// The error joins one *[InvalidSpecError] for every fault
// (Unwrap() []error), each with the field's path, and is marked with
// [NothingDone].
func ValidatePodVolumes(pod *v1.Pod) error {
	if pod == nil {
		return Invalid("pod", "is missing")
	}
	var c checker
	c.segment("metadata.uid", string(pod.UID))
	c.names("metadata.name", pod.Name, validation.IsDNS1123Subdomain)
	c.names("metadata.namespace", pod.Namespace, validation.IsDNS1123Label)
	volumes := c.volumes(pod.Spec.Volumes)
	c.containers("spec.initContainers", pod.Spec.InitContainers, volumes)
	c.containers("spec.containers", pod.Spec.Containers, volumes)
	for i, e := range pod.Spec.EphemeralContainers {
		c.container(fmt.Sprintf("spec.ephemeralContainers[%d]", i), v1.Container(e.EphemeralContainerCommon), volumes)
	}
	c.containerNames(pod)
	return c.err()
}

// checker collects what is wrong.
type checker struct{ faults []error }

func (c *checker) err() error { return errors.Join(c.faults...) }

func (c *checker) refuse(field, format string, args ...any) {
	c.faults = append(c.faults, Invalid(field, format, args...))
}

func (c *checker) segment(field, s string) {
	if err := CheckPathSegment(field, s); err != nil {
		c.faults = append(c.faults, err)
	}
}

// names checks a name by one of apimachinery's functions.
func (c *checker) names(field, name string, check func(string) []string) {
	if name == "" {
		c.refuse(field, "must not be empty")
		return
	}
	if wrong := check(name); len(wrong) > 0 {
		c.refuse(field, "%q is no valid name: %s", name, strings.Join(wrong, "; "))
	}
}

func (c *checker) required(field, s string) {
	if s == "" {
		c.refuse(field, "must not be empty")
	}
}

// volumes checks the pod's volumes and returns the set of their names.
func (c *checker) volumes(volumes []v1.Volume) map[string]int {
	seen := make(map[string]int, len(volumes))
	for i := range volumes {
		field := fmt.Sprintf("spec.volumes[%d]", i)
		v := &volumes[i]
		c.names(field+".name", v.Name, validation.IsDNS1123Label)
		if first, twice := seen[v.Name]; twice {
			c.refuse(field+".name", "%q is the name of spec.volumes[%d] already", v.Name, first)
		} else {
			seen[v.Name] = i
		}
		c.oneSource(field, NewSpecFromVolume(v))
		c.volumeSource(field, v)
	}
	return seen
}

func (c *checker) oneSource(field string, spec *Spec) {
	if types := SourceTypes(spec); len(types) != 1 {
		c.refuse(field, "volume %q must have exactly one source, has %s", spec.Name(), countSources(types))
	}
}

func countSources(types []string) string {
	if len(types) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d: %s", len(types), strings.Join(types, ", "))
}

func (c *checker) containers(field string, containers []v1.Container, volumes map[string]int) {
	for i, container := range containers {
		c.container(fmt.Sprintf("%s[%d]", field, i), container, volumes)
	}
}

func (c *checker) container(field string, container v1.Container, volumes map[string]int) {
	c.names(field+".name", container.Name, validation.IsDNS1123Label)
	paths := make(map[string]bool)
	for i, m := range container.VolumeMounts {
		field := fmt.Sprintf("%s.volumeMounts[%d]", field, i)
		c.volumeExists(field+".name", m.Name, volumes)
		c.required(field+".mountPath", m.MountPath)
		if paths[m.MountPath] {
			c.refuse(field+".mountPath", "%q is mounted twice in this container", m.MountPath)
		}
		paths[m.MountPath] = true
		c.subPath(field, m)
		c.bindMountOptions(field+".bindMountOptions", kubeapi.BindMountOptions(&m))
	}
	for i, d := range container.VolumeDevices {
		field := fmt.Sprintf("%s.volumeDevices[%d]", field, i)
		c.volumeExists(field+".name", d.Name, volumes)
		c.required(field+".devicePath", d.DevicePath)
	}
}

func (c *checker) volumeExists(field, name string, volumes map[string]int) {
	if _, ok := volumes[name]; !ok {
		c.refuse(field, "the pod has no volume %q", name)
	}
}

func (c *checker) subPath(field string, m v1.VolumeMount) {
	if m.SubPath != "" && m.SubPathExpr != "" {
		c.refuse(field, "subPath and subPathExpr exclude each other")
	}
	c.localPath(field+".subPath", m.SubPath)
	c.localPath(field+".subPathExpr", m.SubPathExpr)
}

func (c *checker) bindMountOptions(field string, options []string) {
	for i, o := range options {
		field := fmt.Sprintf("%s[%d]", field, i)
		switch o {
		case "noexec", "nodev", "nosuid":
		default:
			c.refuse(field, "%q is not one of noexec, nodev, nosuid", o)
		}
		if slices.Contains(options[:i], o) {
			c.refuse(field, "%q is there already", o)
		}
	}
}

// localPath refuses a path that could lead out of where it starts. Empty is
// allowed.
func (c *checker) localPath(field, p string) {
	if path.IsAbs(p) {
		c.refuse(field, "%q must be a relative path", p)
	}
	c.noBacksteps(field, p)
}

func (c *checker) noBacksteps(field, p string) {
	if err := checkNoBacksteps(field, p); err != nil {
		c.faults = append(c.faults, err)
	}
}

func (c *checker) absolutePath(field, p string) {
	if err := CheckAbsolutePath(field, p); err != nil {
		c.faults = append(c.faults, err)
	}
}
