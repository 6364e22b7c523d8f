package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
)

func otherNodes(pv, node string) error {
	return &volume.Failure{
		Cause: ErrNodeAffinity, Subject: pv,
		What: fmt.Sprintf("the node affinity of PersistentVolume %s does not allow node %s", pv, node),
		Next: "run the pod on a node that it names",
	}
}

// claimFor returns the name of the claim that a pod's volume is, if it is one. That
// of an ephemeral volume is named after pod and volume.
func claimFor(pod *v1.Pod, v *v1.Volume) (types.NamespacedName, bool) {
	switch {
	case v.PersistentVolumeClaim != nil:
		return types.NamespacedName{Namespace: pod.Namespace, Name: v.PersistentVolumeClaim.ClaimName}, true
	case v.Ephemeral != nil:
		return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name + "-" + v.Name}, true
	}
	return types.NamespacedName{}, false
}

// resolve returns the spec of a pod's volume: the volume itself, or the
// PersistentVolume that its claim is bound to.
func (o *operator) resolve(ctx context.Context, source objects.Source, pod *v1.Pod, v *v1.Volume) (*volume.Spec, error) {
	name, isClaim := claimFor(pod, v)
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
	pv, err := o.boundVolume(ctx, source, claim)
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

func (o *operator) boundVolume(ctx context.Context, source objects.Source, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolume, error) {
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
	return pv, o.checkAffinity(ctx, source, pv)
}

func (o *operator) checkAffinity(ctx context.Context, source objects.Source, pv *v1.PersistentVolume) error {
	if pv.Spec.NodeAffinity == nil {
		return nil
	}
	var labels map[string]string // without a Node object just the host name, which MatchesNode knows
	node, err := objects.Get[*v1.Node](ctx, source, volume.NewObjectRef("Node", "", o.config.NodeName))
	switch {
	case err == nil:
		labels = node.Labels
	case !errors.Is(err, volume.ErrNotFound):
		return err
	}
	matches, err := claimbinding.MatchesNode(pv, labels, o.config.NodeName)
	if err != nil {
		return err
	}
	if !matches {
		return otherNodes(pv.Name, o.config.NodeName)
	}
	return nil
}

// readOnlyByAll reports whether every volume of the pod that uses the claim
// wants it read-only: they share one mount, so one writer decides.
func readOnlyByAll(pod *v1.Pod, claim types.NamespacedName) bool {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if name, ok := claimFor(pod, v); ok && name == claim && (v.PersistentVolumeClaim == nil || !v.PersistentVolumeClaim.ReadOnly) {
			return false
		}
	}
	return true
}

// mounterArgs are the pod's wishes for all of its volumes.
func mounterArgs(pod *v1.Pod) volume.MounterArgs {
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

// checkMode refuses a container that mounts what is a device, or has as a device
// what is a file system. The names are the pod's, all of the same volume.
func checkMode(pod *v1.Pod, names []string, spec *volume.Spec) (err error) {
	volume.EachContainer(pod, func(c *v1.Container, _ string) bool {
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

// label sets the label that the volume is asked to be mounted with. One that is
// mounted keeps its own, since another needs another mount.
func (o *operator) label(ctx context.Context, u *setUp, plugin volume.VolumePlugin, spec *volume.Spec) (err error) {
	if label, mounted := o.mountedLabel(u); mounted {
		u.record.SELinuxLabel = label
		return nil
	}
	u.record.SELinuxLabel, err = o.config.SELinux.MountLabel(ctx, u.pod, u.record.Volumes, plugin, spec)
	return err
}

func (o *operator) mountedLabel(u *setUp) (label string, mounted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range u.of.pod.volumes { // one that was adopted has another entry
		if s.state == StateMounted && s.actual.record != nil && s.actual.key == u.key {
			return s.actual.record.SELinuxLabel, true
		}
	}
	return "", false
}
