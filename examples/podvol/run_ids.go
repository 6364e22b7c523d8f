package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/userns"
)

// ids are those that a pod's security context asks for.
type ids struct {
	user, group *int64
	groups      []int64 // fsGroup and the supplementary ones
	needs       []neededID
}

// neededID is an id of a user or group, and which field names it.
type neededID struct {
	field string
	group bool
	id    int64
}

func (n neededID) String() string {
	kind := "user"
	if n.group {
		kind = "group"
	}
	return fmt.Sprintf("%s %d (%s)", kind, n.id, n.field)
}

// idsOf returns the ids of one container; its own security context comes before
// the pod's, and what it overrides is not needed.
func idsOf(pod *v1.Pod, container *v1.Container) (i ids) {
	ofPod, own := pod.Spec.SecurityContext, container.SecurityContext
	if ofPod == nil {
		ofPod = &v1.PodSecurityContext{}
	}
	if own == nil {
		own = &v1.SecurityContext{}
	}
	if own.RunAsUser != nil {
		i.user = i.need(own.RunAsUser, "securityContext.runAsUser of container "+container.Name, false)
	} else {
		i.user = i.need(ofPod.RunAsUser, "spec.securityContext.runAsUser", false)
	}
	if own.RunAsGroup != nil {
		i.group = i.need(own.RunAsGroup, "securityContext.runAsGroup of container "+container.Name, true)
	} else {
		i.group = i.need(ofPod.RunAsGroup, "spec.securityContext.runAsGroup", true)
	}
	for n := range ofPod.SupplementalGroups {
		i.need(&ofPod.SupplementalGroups[n], fmt.Sprintf("spec.securityContext.supplementalGroups[%d]", n), true)
	}
	i.groups = append(i.groups, ofPod.SupplementalGroups...)
	if ofPod.FSGroup != nil {
		i.groups = append(i.groups, *i.need(ofPod.FSGroup, "spec.securityContext.fsGroup", true))
	}
	return i
}

func (i *ids) need(id *int64, field string, group bool) *int64 {
	if id != nil {
		i.needs = append(i.needs, neededID{field, group, *id})
	}
	return id
}

// unmappedError says that a pod needs ids that this user namespace does not
// have.
type unmappedError struct {
	pod     string
	missing []neededID
	// why the namespace has no more, and what to do; may be empty.
	why string
}

func (e *unmappedError) Error() string {
	names := make([]string, len(e.missing))
	for i, n := range e.missing {
		names[i] = n.String()
	}
	text := fmt.Sprintf("pod %s needs ids that are not mapped in this user namespace: %s", e.pod, strings.Join(names, ", "))
	if e.why != "" {
		return text + "; " + e.why
	}
	return text + "; map them, or run as root"
}

// credentialOf returns the ids that the program runs with, or nil where the pod
// asks for none. Ids that are not mapped are an *unmappedError; why is what to
// say about that.
func credentialOf(pod *v1.Pod, container *v1.Container, why string) (*sandbox.Credential, error) {
	wanted := idsOf(pod, container)
	if err := wanted.check(pod, why); err != nil {
		return nil, err
	}
	if wanted.user == nil && wanted.group == nil && len(wanted.groups) == 0 {
		return nil, checkNonRoot(pod, container, nil)
	}
	c := &sandbox.Credential{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	if wanted.user != nil {
		// Without an image to look the user up in, its group is root's, as with a
		// runtime that does not find the user there.
		c.UID, c.GID = uint32(*wanted.user), 0
	}
	if wanted.group != nil {
		c.GID = uint32(*wanted.group)
	}
	for _, g := range wanted.groups {
		if !slices.Contains(c.Groups, uint32(g)) {
			c.Groups = append(c.Groups, uint32(g))
		}
	}
	allowed, err := userns.SetgroupsAllowed()
	if err != nil {
		return nil, err
	}
	if !allowed {
		// Only one group is mapped here, which the process has anyway.
		c.Groups, c.KeepGroups = nil, true
	}
	return c, checkNonRoot(pod, container, wanted.user)
}

func (i ids) check(pod *v1.Pod, why string) error {
	users, err := userns.UIDs()
	if err != nil {
		return err
	}
	groups, err := userns.GIDs()
	if err != nil {
		return err
	}
	missing := slices.Clone(i.needs)
	missing = slices.DeleteFunc(missing, func(n neededID) bool {
		if n.group {
			return groups.Has(n.id)
		}
		return users.Has(n.id)
	})
	if len(missing) == 0 {
		return nil
	}
	return &unmappedError{pod: pod.Namespace + "/" + pod.Name, missing: missing, why: why}
}

// checkNonRoot refuses what a kubelet would refuse: runAsNonRoot without a user
// that is none.
func checkNonRoot(pod *v1.Pod, container *v1.Container, user *int64) error {
	required := false
	if c := pod.Spec.SecurityContext; c != nil && c.RunAsNonRoot != nil {
		required = *c.RunAsNonRoot
	}
	if c := container.SecurityContext; c != nil && c.RunAsNonRoot != nil {
		required = *c.RunAsNonRoot
	}
	uid := int64(os.Geteuid())
	if user != nil {
		uid = *user
	}
	if required && uid == 0 {
		return usagef("container %q of pod %s/%s must not run as root (runAsNonRoot), and no other user is named; set runAsUser", container.Name, pod.Namespace, pod.Name)
	}
	return nil
}
