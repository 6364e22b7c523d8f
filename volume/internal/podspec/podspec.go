// Package podspec reads what a pod says of its volumes: which claim a volume is,
// and the PersistentVolume of that, which volumes are one directory, how
// containers use them, and which options a mount must have.
package podspec

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/podstate"
)

// ErrNodeAffinity is the cause where a PersistentVolume belongs to other nodes.
const ErrNodeAffinity volume.Cause = "the volume belongs to other nodes"

func otherNodes(pv, node string) error {
	return &volume.Failure{
		Cause: ErrNodeAffinity, Subject: pv,
		What: fmt.Sprintf("the node affinity of PersistentVolume %s does not allow node %s", pv, node),
		Next: "run the pod on a node that it names",
	}
}

// Resolve returns the spec of a pod's volume: the volume itself, or the
// PersistentVolume that its claim is bound to.
func Resolve(ctx context.Context, source objects.Source, nodeName string, pod *v1.Pod, v *v1.Volume) (*volume.Spec, error) {
	name, isClaim := claimbinding.ClaimOf(pod, v)
	if !isClaim {
		return volume.NewSpecFromVolume(v), nil
	}
	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, source, volume.ObjectRef{Kind: "PersistentVolumeClaim", NamespacedName: name})
	if v.Ephemeral != nil {
		err = checkEphemeral(pod, v, name, claim, err)
	}
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	pv, err := boundVolume(ctx, source, nodeName, claim)
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	return volume.NewSpecFromPersistentVolume(pv, readOnlyByAll(pod, name)), nil
}

// checkEphemeral completes the look-up of an ephemeral volume's claim: it is made
// for the pod, and the one of another must not be used.
func checkEphemeral(pod *v1.Pod, v *v1.Volume, name types.NamespacedName, claim *v1.PersistentVolumeClaim, err error) error {
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return &claimbinding.Error{Claim: name, Err: claimbinding.ErrUnbound,
			Detail: fmt.Sprintf("it has not been made for the ephemeral volume %q yet, which a controller does", v.Name)}
	case err != nil:
		return err
	case !metav1.IsControlledBy(claim, pod):
		return &claimbinding.Error{Claim: name, Volume: claim.Spec.VolumeName, Err: claimbinding.ErrElsewhere,
			Detail: fmt.Sprintf("the claim was not made for the ephemeral volume %q of this pod; delete it, or rename the volume", v.Name)}
	}
	return nil
}

func boundVolume(ctx context.Context, source objects.Source, nodeName string, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolume, error) {
	if claim.Spec.VolumeName == "" {
		return nil, claimbinding.Check(claim, nil)
	}
	pv, err := objects.Get[*v1.PersistentVolume](ctx, source, volume.NewObjectRef("PersistentVolume", "", claim.Spec.VolumeName))
	if err != nil {
		return nil, err
	}
	if err := claimbinding.Check(claim, pv); err != nil {
		return nil, err
	}
	return pv, checkAffinity(ctx, source, nodeName, pv)
}

func checkAffinity(ctx context.Context, source objects.Source, nodeName string, pv *v1.PersistentVolume) error {
	if pv.Spec.NodeAffinity == nil {
		return nil
	}
	var labels map[string]string // without a Node object just the host name, which MatchesNode knows
	node, err := objects.Get[*v1.Node](ctx, source, volume.NewObjectRef("Node", "", nodeName))
	switch {
	case err == nil:
		labels = node.Labels
	case !errors.Is(err, volume.ErrNotFound):
		return err
	}
	matches, err := claimbinding.MatchesNode(pv, labels, nodeName)
	if err != nil {
		return err
	}
	if !matches {
		return otherNodes(pv.Name, nodeName)
	}
	return nil
}

// readOnlyByAll reports whether every volume of the pod that uses the claim
// wants it read-only: they share one mount, so one writer decides.
func readOnlyByAll(pod *v1.Pod, claim types.NamespacedName) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if name, ok := claimbinding.ClaimOf(pod, v); ok && name == claim && (v.PersistentVolumeClaim == nil || !v.PersistentVolumeClaim.ReadOnly) {
			return false
		}
	}
	return true
}

// MounterArgs are the pod's wishes for all of its volumes.
func MounterArgs(pod *v1.Pod) volume.MounterArgs {
	args := volume.MounterArgs{FsUser: commonUser(pod)}
	if sc := pod.Spec.SecurityContext; sc != nil {
		args.FsGroup = sc.FSGroup
		args.FSGroupChangePolicy = sc.FSGroupChangePolicy
	}
	return args
}

// commonUser is the user that every container runs as, or nil where they
// differ or do not say.
func commonUser(pod *v1.Pod) *int64 {
	var podUser *int64
	if pod.Spec.SecurityContext != nil {
		podUser = pod.Spec.SecurityContext.RunAsUser
	}
	var user *int64
	same := true
	consider := func(sc *v1.SecurityContext) {
		runs := podUser
		if sc != nil && sc.RunAsUser != nil {
			runs = sc.RunAsUser
		}
		if runs == nil || (user != nil && *user != *runs) {
			same = false
			return
		}
		user = runs
	}
	for i := range pod.Spec.InitContainers {
		consider(pod.Spec.InitContainers[i].SecurityContext)
	}
	for i := range pod.Spec.Containers {
		consider(pod.Spec.Containers[i].SecurityContext)
	}
	for i := range pod.Spec.EphemeralContainers {
		consider(pod.Spec.EphemeralContainers[i].SecurityContext)
	}
	if !same {
		return nil
	}
	return user
}

// CheckMode refuses a container that mounts a device, or has a file system as a
// device. The names are the pod's, all of the same volume.
func CheckMode(pod *v1.Pod, names []string, spec *volume.Spec) (err error) {
	podstate.EachContainer(pod, func(c *v1.Container, _ string) bool {
		err = checkUse(c, names, spec)
		return err == nil
	})
	return err
}

func checkUse(c *v1.Container, names []string, spec *volume.Spec) error {
	for i, m := range c.VolumeMounts {
		if spec.IsBlock() && slices.Contains(names, m.Name) {
			return volume.Invalid(fmt.Sprintf("volumeMounts[%d] of container %q", i, c.Name),
				"volume %q is a block device (PersistentVolume %s has volumeMode Block); list it under volumeDevices, or use a claim of volumeMode Filesystem", m.Name, spec.Name())
		}
	}
	for i, d := range c.VolumeDevices {
		if !spec.IsBlock() && slices.Contains(names, d.Name) {
			return volume.Invalid(fmt.Sprintf("volumeDevices[%d] of container %q", i, c.Name),
				"volume %q is a file system; list it under volumeMounts, or use a claim of volumeMode Block", d.Name)
		}
	}
	return nil
}

// HasGroup reports whether a pod names a supplemental group.
func HasGroup(pod *v1.Pod, group int64) bool {
	sc := pod.Spec.SecurityContext
	return sc != nil && slices.Contains(sc.SupplementalGroups, group)
}

// Same reports whether two pods want the same of their volumes.
func Same(a, b *v1.Pod) bool {
	return equality.Semantic.DeepEqual(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Annotations, b.Annotations) &&
		equality.Semantic.DeepEqual(a.Spec, b.Spec)
}

// Name is the pod's namespace and name.
func Name(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// NamesOf returns the pod's volumes that are the same directory as v: the ones of
// the same claim.
func NamesOf(pod *v1.Pod, v *v1.Volume) (names []string) {
	claim, isClaim := claimbinding.ClaimOf(pod, v)
	if !isClaim {
		return []string{v.Name}
	}
	for i := range pod.Spec.Volumes {
		other := &pod.Spec.Volumes[i]
		if name, ok := claimbinding.ClaimOf(pod, other); ok && name == claim {
			names = append(names, other.Name)
		}
	}
	return names
}

func containerStatuses(pod *v1.Pod) []v1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses)
}

// TellsOfAll reports whether a pod's status names each of its containers, so that
// there is none of which nothing is known.
func TellsOfAll(pod *v1.Pod) bool {
	told := containerStatuses(pod)
	all := true
	podstate.EachContainer(pod, func(c *v1.Container, _ string) bool {
		all = slices.ContainsFunc(told, func(s v1.ContainerStatus) bool { return s.Name == c.Name })
		return all
	})
	return all
}

// Volume returns the pod's volume of this name, which it has.
func Volume(pod *v1.Pod, name string) *v1.Volume {
	i := slices.IndexFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.Name == name })
	return &pod.Spec.Volumes[i]
}

// CheckMountOptions refuses mount options of a PersistentVolume where the plugin takes none.
func CheckMountOptions(plugin volume.VolumePlugin, spec *volume.Spec) error {
	pv := spec.PersistentVolume
	if pv == nil || volume.SupportsMountOption(plugin) {
		return nil
	}
	field := ""
	switch {
	case len(pv.Spec.MountOptions) > 0:
		field = "spec.mountOptions"
	case pv.Annotations[v1.MountOptionAnnotation] != "":
		field = "annotation " + v1.MountOptionAnnotation
	default:
		return nil
	}
	return volume.Invalid(field, "volumes of %s take no mount options; remove them from PersistentVolume %s", plugin.GetPluginName(), pv.Name)
}

// CheckNamesake refuses a PersistentVolume with the directory of another inline volume
// of the pod: directories are named after both alike. An inline volume that is translated is
// a PersistentVolume here, and named after its disk. The names are the volume's own.
func CheckNamesake(plugins *volume.VolumePluginMgr, translator volume.Translator, pod *v1.Pod, names []string, spec *volume.Spec, plugin volume.VolumePlugin) error {
	if spec.PersistentVolume == nil {
		return nil
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if _, isClaim := claimbinding.ClaimOf(pod, v); isClaim || slices.Contains(names, v.Name) || !podstate.UsesVolume(pod, v.Name) {
			continue
		}
		beside, err := plugins.Translate(translator, volume.NewSpecFromVolume(v), pod.Namespace)
		if err != nil || beside.Name() != spec.Name() {
			continue // it is refused itself, or has another directory
		}
		if beside.Migrated {
			return volume.Invalid("volume "+v.Name, "is %s, which this pod has as volume %s, too; name it once, and mount that where it is needed", beside.Name(), names[0])
		}
		other, err := plugins.FindPluginBySpec(beside)
		if err == nil && other.GetPluginName() == plugin.GetPluginName() {
			return volume.Invalid("volume "+v.Name, "has the name of PersistentVolume %s, which this pod uses too, so that both would have one directory; rename the volume", v.Name)
		}
	}
	return nil
}
