// Package selinux knows which SELinux label a volume's file system is mounted with, by the
// rules of KEP-1710, and how this node labels containers' files.
package selinux

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/podstate"
)

// ErrConflict is the cause where a file system is mounted with one SELinux label, and is
// asked for with another.
const ErrConflict volume.Cause = "conflicting SELinux labels"

// Labels is the role that knows how this node labels containers' files.
type Labels interface {
	// FileLabel returns the label that the files of a container with these
	// options have. An empty one says that it is not known before the container
	// starts, as without a level: then runtimes choose one. The options are only
	// read.
	FileLabel(options *v1.SELinuxOptions) (string, error)
}

// severalLabels says that containers of one pod use a volume with different labels,
// while a file system is mounted with one.
func severalLabels(name string, labels []string) error {
	return &volume.Failure{
		Cause: ErrConflict, Subject: name,
		What: fmt.Sprintf("multiple SELinux labels found: the containers that mount volume %q have %s", name, strings.Join(labels, " and ")),
		Next: "give them the same seLinuxOptions, or set the pod's seLinuxChangePolicy to Recursive",
	}
}

// Policy is what a node says of labels. Its zero value mounts nothing with a label.
type Policy struct {
	// Labels is nil for a node without SELinux.
	Labels Labels
	// Mount has volumes of every access mode mounted with their pod's label, unless
	// its seLinuxChangePolicy is Recursive: the kubelet's feature gate SELinuxMount,
	// on by default since Kubernetes 1.37. Otherwise only volumes of
	// ReadWriteOncePod are, and of pods whose policy is MountOption.
	Mount bool
}

// MountLabel returns the label that a file system is mounted with; empty: none, and the
// runtime labels the files one by one. names are the pod's volumes that are this file
// system. The plugin must be able to, the containers must agree, and the volume must be
// ReadWriteOncePod or the pod's policy MountOption; the policy Recursive opts out. Where
// the containers do not agree, the error matches [ErrConflict]. The arguments are only
// read; whatever the error, nothing was done ([volume.NothingDone]).
func (p Policy) MountLabel(ctx context.Context, pod *v1.Pod, names []string, plugin volume.VolumePlugin, spec *volume.Spec) (string, error) {
	if p.Labels == nil || spec.PersistentVolume == nil || spec.IsBlock() || !p.mountsWithLabel(pod, spec.PersistentVolume) {
		return "", nil
	}
	able, ok := volume.AsSELinux(plugin)
	if !ok {
		return "", nil
	}
	if can, err := able.SupportsSELinuxContextMount(ctx, spec); err != nil || !can {
		return "", volume.NothingDone(err)
	}
	labels, err := p.labelsOf(pod, names)
	switch {
	case err != nil:
		return "", err
	case len(labels) > 1:
		return "", volume.NothingDone(severalLabels(names[0], labels))
	case len(labels) == 0:
		return "", nil
	}
	return labels[0], CheckLabel("seLinuxOptions", labels[0])
}

// mountsWithLabel reports whether policy and access modes allow it.
func (p Policy) mountsWithLabel(pod *v1.Pod, pv *v1.PersistentVolume) bool {
	oncePod := slices.Equal(pv.Spec.AccessModes, []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod})
	if sc := pod.Spec.SecurityContext; sc != nil && sc.SELinuxChangePolicy != nil {
		return *sc.SELinuxChangePolicy == v1.SELinuxChangePolicyMountOption
	}
	return oncePod || p.Mount
}

// labelsOf are the labels of the pod's containers that mount one of these
// volumes, sorted, each once. Containers whose label is not known do not count.
func (p Policy) labelsOf(pod *v1.Pod, names []string) (labels []string, err error) {
	podstate.EachContainer(pod, func(c *v1.Container, _ string) bool {
		mounts := slices.ContainsFunc(c.VolumeMounts, func(v v1.VolumeMount) bool { return slices.Contains(names, v.Name) })
		options := seLinuxOptions(pod, c)
		if !mounts || options == nil {
			return true
		}
		var label string
		if label, err = p.Labels.FileLabel(options); err == nil && label != "" {
			labels = append(labels, label)
		}
		return err == nil
	})
	slices.Sort(labels)
	return slices.Compact(labels), volume.NothingDone(err)
}

// seLinuxOptions are the container's own, or else the pod's.
func seLinuxOptions(pod *v1.Pod, c *v1.Container) *v1.SELinuxOptions {
	if c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil {
		return c.SecurityContext.SELinuxOptions
	}
	if pod.Spec.SecurityContext != nil {
		return pod.Spec.SecurityContext.SELinuxOptions
	}
	return nil
}
