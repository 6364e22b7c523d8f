package podrun

import (
	"fmt"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/userns"
)

// ids are the users and groups in a pod's security context.
type ids struct {
	user, group *int64
	groups      []int64 // fsGroup and the supplementary ones
	needs       []neededID
}

// neededID is the id of a user or group, and the field that names it.
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

// idsOf returns the ids of one container. Its own security context takes
// precedence over the pod's. An overridden id is not needed.
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

// UnmappedIDsError says that a pod needs ids that this user namespace does not
// have.
type UnmappedIDsError struct {
	// Pod is the pod, as NAMESPACE/NAME.
	Pod string
	// Missing are the ids, each with the field that names it.
	Missing []string
	// Why says why the namespace has no more ids, and what to do; it may be
	// empty.
	Why string
}

func (e *UnmappedIDsError) Error() string {
	text := fmt.Sprintf("pod %s needs ids that are not mapped in this user namespace: %s", e.Pod, strings.Join(e.Missing, ", "))
	if e.Why != "" {
		return text + "; " + e.Why
	}
	return text + "; map them, or run as root"
}

// credentialOf returns the ids of the program, or nil if the pod asks for none.
// Ids that are not mapped are an *UnmappedIDsError with the text why.
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
		// There is no image to find the user in. So the group is root's, as with
		// a runtime that does not find the user there.
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
	names := make([]string, len(missing))
	for n := range missing {
		names[n] = missing[n].String()
	}
	return &UnmappedIDsError{Pod: pod.Namespace + "/" + pod.Name, Missing: names, Why: why}
}

// checkNonRoot refuses runAsNonRoot without a user other than root, as a kubelet
// does.
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
		return fmt.Errorf("container %q of pod %s/%s must not run as root (runAsNonRoot), and no other user is named; set runAsUser", container.Name, pod.Namespace, pod.Name)
	}
	return nil
}
