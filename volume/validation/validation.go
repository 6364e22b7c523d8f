// Package validation refuses pods, volumes, claims and storage classes that the API
// server would refuse. So a manifest that no API server has seen is checked before
// anything is mounted. The functions do no I/O, change nothing, and build for every
// system.
//
// Each fault is a *[volume.InvalidSpecError] with the path of the field as the
// manifest spells it.
package validation

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podvol/podvol/util/kubeapi"
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
	containers := containerChecker{&c.faults, c.volumes(pod)}
	for i := range pod.Spec.InitContainers {
		containers.container(fmt.Sprintf("spec.initContainers[%d]", i), &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		containers.container(fmt.Sprintf("spec.containers[%d]", i), &pod.Spec.Containers[i])
	}
	for i, e := range pod.Spec.EphemeralContainers {
		container := v1.Container(e.EphemeralContainerCommon)
		field := fmt.Sprintf("spec.ephemeralContainers[%d]", i)
		containers.container(field, &container)
		containers.noSubPaths(field, container.VolumeMounts)
	}
	containers.containerNames(pod)
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

// faults collects the faults of one object. Its methods are the rules that many
// fields share.
type faults struct {
	list []error
	// pod and volume are the owners of the checked field.
	pod    types.NamespacedName
	volume string
}

func (c *faults) err() error { return errors.Join(c.list...) }

func (c *faults) refuse(field, format string, args ...any) {
	c.add(volume.Invalid(field, format, args...))
}

// add adds the fault that another function has found, or nil.
func (c *faults) add(err error) {
	if err == nil {
		return
	}
	if invalid, ok := errors.AsType[*volume.InvalidSpecError](err); ok {
		invalid.Pod, invalid.Volume = c.pod, c.volume
	}
	c.list = append(c.list, err)
}

// addAll adds the faults that apimachinery has found.
func (c *faults) addAll(found field.ErrorList) {
	for _, fault := range found {
		c.refuse(fault.Field, "%s", fault.ErrorBody())
	}
}

func (c *faults) segment(field, s string) {
	c.add(volume.CheckPathSegment(field, s))
}

// names checks a name by one of apimachinery's functions.
func (c *faults) names(field, name string, check func(string) []string) {
	if name == "" {
		c.refuse(field, "must not be empty; name it")
		return
	}
	if wrong := check(name); len(wrong) > 0 {
		c.refuse(field, "%q is no valid name: %s", name, strings.Join(wrong, "; "))
	}
}

func (c *faults) required(field, s string) {
	if s == "" {
		c.refuse(field, "must not be empty; set it")
	}
}

// oneOf refuses a word that the API does not know.
func oneOf[S ~string](c *faults, field string, word S, known ...S) {
	if !slices.Contains(known, word) {
		c.refuse(field, "%q is not one of %q; use one of them", word, known)
	}
}

// between refuses a number outside the bounds. Both bounds are allowed.
func (c *faults) between(field string, n, least, most int64) {
	if n < least || n > most {
		c.refuse(field, "must be between %d and %d, is %d", least, most, n)
	}
}

// localPath refuses a path that could lead out of its directory. Empty is
// allowed.
func (c *faults) localPath(field, p string) {
	if path.IsAbs(p) {
		c.refuse(field, "%q must be a relative path", p)
	}
	c.noBacksteps(field, p)
}

func (c *faults) noBacksteps(field, p string) {
	c.add(checkNoBacksteps(field, p))
}

func (c *faults) absolutePath(field, p string) {
	c.add(CheckAbsolutePath(field, p))
}

// CheckAbsolutePath refuses a path of a manifest that is empty or not absolute,
// has an element "..", or contains a NUL byte. The error is an
// *[volume.InvalidSpecError]; it names the path by the argument what.
func CheckAbsolutePath(what, p string) error {
	switch {
	case p == "":
		return volume.Invalid(what, "must not be empty")
	case p[0] != '/':
		return volume.Invalid(what, "must be an absolute path, is %q", p)
	}
	return checkNoBacksteps(what, p)
}

func checkNoBacksteps(what, p string) error {
	for element := range strings.SplitSeq(p, "/") {
		if element == ".." {
			return volume.Invalid(what, "must not contain \"..\": %q", p)
		}
	}
	if strings.IndexByte(p, 0) >= 0 {
		return volume.Invalid(what, "must not contain a NUL byte: %q", p)
	}
	return nil
}

func (c *checker) labelsAndAnnotations(at string, meta *metav1.ObjectMeta) {
	c.addAll(metav1validation.ValidateLabels(meta.Labels, field.NewPath(at, "labels")))
	c.addAll(apivalidation.ValidateAnnotations(meta.Annotations, field.NewPath(at, "annotations")))
}

// containerChecker checks the containers of a pod with these volumes.
type containerChecker struct {
	*faults
	volumes map[string]*v1.Volume // by name
}

// container checks a container's volumeMounts and volumeDevices.
func (c *containerChecker) container(field string, container *v1.Container) {
	c.names(field+".name", container.Name, validation.IsDNS1123Label)
	for i := range container.VolumeMounts {
		c.volume = container.VolumeMounts[i].Name
		c.volumeMount(fmt.Sprintf("%s.volumeMounts[%d]", field, i), container, i)
	}
	for i := range container.VolumeDevices {
		c.volume = container.VolumeDevices[i].Name
		c.volumeDevice(fmt.Sprintf("%s.volumeDevices[%d]", field, i), container, i)
	}
	c.volume = ""
}

func (c *containerChecker) volumeMount(field string, container *v1.Container, i int) {
	m := &container.VolumeMounts[i]
	v, ok := c.volumes[m.Name]
	if !ok {
		c.refuse(field+".name", "the pod has no volume %q; add it below spec.volumes, or correct the name", m.Name)
	}
	c.required(field+".mountPath", m.MountPath)
	if slices.ContainsFunc(container.VolumeMounts[:i], func(other v1.VolumeMount) bool { return other.MountPath == m.MountPath }) {
		c.refuse(field+".mountPath", "%q is mounted twice in this container; give each volumeMount a path of its own", m.MountPath)
	}
	c.subPath(field, m)
	c.mountPropagation(field+".mountPropagation", m, container)
	c.recursiveReadOnly(field+".recursiveReadOnly", m)
	options := kubeapi.BindMountOptions(m)
	c.bindMountOptions(field+".bindMountOptions", options)
	if ok && v.Image != nil && len(options) > 0 {
		c.refuse(field+".bindMountOptions", "cannot be used with image volumes; remove them")
	}
}

func (c *containerChecker) subPath(field string, m *v1.VolumeMount) {
	if m.SubPath != "" && m.SubPathExpr != "" {
		c.refuse(field+".subPathExpr", "subPath and subPathExpr exclude each other; remove one")
	}
	c.localPath(field+".subPath", m.SubPath)
	c.localPath(field+".subPathExpr", m.SubPathExpr)
}

// noSubPaths is for ephemeral containers: for debugging they see whole volumes.
func (c *containerChecker) noSubPaths(field string, mounts []v1.VolumeMount) {
	for i, m := range mounts {
		c.volume = m.Name
		for _, f := range []struct{ name, value string }{{"subPath", m.SubPath}, {"subPathExpr", m.SubPathExpr}} {
			if f.value != "" {
				c.refuse(fmt.Sprintf("%s.volumeMounts[%d].%s", field, i, f.name), "cannot be set for an ephemeral container; mount the whole volume")
			}
		}
	}
	c.volume = ""
}

func (c *containerChecker) mountPropagation(field string, m *v1.VolumeMount, container *v1.Container) {
	if m.MountPropagation == nil {
		return
	}
	oneOf(c.faults, field, *m.MountPropagation, v1.MountPropagationNone, v1.MountPropagationHostToContainer, v1.MountPropagationBidirectional)
	s := container.SecurityContext
	privileged := s != nil && s.Privileged != nil && *s.Privileged
	if *m.MountPropagation == v1.MountPropagationBidirectional && !privileged {
		c.refuse(field, "Bidirectional is for privileged containers only; make container %q privileged, or use HostToContainer", container.Name)
	}
}

func (c *containerChecker) recursiveReadOnly(field string, m *v1.VolumeMount) {
	if m.RecursiveReadOnly == nil || *m.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return
	}
	oneOf(c.faults, field, *m.RecursiveReadOnly, v1.RecursiveReadOnlyDisabled, v1.RecursiveReadOnlyIfPossible, v1.RecursiveReadOnlyEnabled)
	if !m.ReadOnly {
		c.refuse(field, "%s needs readOnly: true on the same volumeMount", *m.RecursiveReadOnly)
	}
	if m.MountPropagation != nil && *m.MountPropagation != v1.MountPropagationNone {
		c.refuse(field, "%s needs mountPropagation: None, not %s", *m.RecursiveReadOnly, *m.MountPropagation)
	}
}

func (c *containerChecker) bindMountOptions(field string, options []string) {
	for i, o := range options {
		field := fmt.Sprintf("%s[%d]", field, i)
		oneOf(c.faults, field, o, "noexec", "nodev", "nosuid")
		if slices.Contains(options[:i], o) {
			c.refuse(field, "%q is there already; remove one", o)
		}
	}
}

func (c *containerChecker) volumeDevice(field string, container *v1.Container, i int) {
	d, others := container.VolumeDevices[i], container.VolumeDevices[:i]
	switch v, ok := c.volumes[d.Name]; {
	case !ok:
		c.refuse(field+".name", "the pod has no volume %q; add it below spec.volumes, or correct the name", d.Name)
	case v.PersistentVolumeClaim == nil && v.Ephemeral == nil:
		c.refuse(field+".name", "only a persistentVolumeClaim or ephemeral volume can be a device; use volumeMounts")
	}
	c.required(field+".devicePath", d.DevicePath)
	c.noBacksteps(field+".devicePath", d.DevicePath)
	if slices.ContainsFunc(others, func(o v1.VolumeDevice) bool { return o.Name == d.Name }) {
		c.refuse(field+".name", "%q is a device of this container already; remove one", d.Name)
	}
	if slices.ContainsFunc(others, func(o v1.VolumeDevice) bool { return o.DevicePath == d.DevicePath }) {
		c.refuse(field+".devicePath", "%q is the path of another device of this container; give each a path of its own", d.DevicePath)
	}
	if slices.ContainsFunc(container.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == d.Name }) {
		c.refuse(field+".name", "%q is in volumeMounts too; a volume is a device or is mounted, not both; remove one", d.Name)
	}
	if slices.ContainsFunc(container.VolumeMounts, func(m v1.VolumeMount) bool { return m.MountPath == d.DevicePath }) {
		c.refuse(field+".devicePath", "%q is the mountPath of a volumeMount too; give each a path of its own", d.DevicePath)
	}
}

// containerNames refuses two containers of one name, of whichever kind: a name
// must stand for one container.
func (c *containerChecker) containerNames(pod *v1.Pod) {
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
