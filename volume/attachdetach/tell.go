package attachdetach

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Reasons of events, as in Kubernetes' controller.
const (
	reasonFailed   = "FailedAttachVolume"
	reasonAttached = "SuccessfulAttachVolume"
)

// teller tells pods what their volumes wait for: each state once, as long as it lasts.
type teller struct {
	sink EventRecorder // nil: there is no listener

	mu   sync.Mutex
	told map[types.UID]map[v1.UniqueVolumeName]string
}

func newTeller(sink EventRecorder) *teller {
	return &teller{sink: sink, told: make(map[types.UID]map[v1.UniqueVolumeName]string)}
}

// attaching notes that a volume is being attached, which is no event.
func (t *teller) attaching(s *site) {
	for _, p := range s.holders {
		t.enter(p, s.name, "attaching")
	}
}

// attached tells the pods that waited for a volume that it is there.
func (t *teller) attached(s *site) {
	for _, p := range s.holders {
		if t.leave(p, s.name) {
			t.send(p, v1.EventTypeNormal, reasonAttached, fmt.Sprintf("AttachVolume.Attach succeeded for volume %q", specName(p, s.name)))
		}
	}
}

// waits tells the pods of a node why a volume is not attached. Details that change with each
// attempt make no other state.
func (t *teller) waits(s *site, why, details string) {
	for _, p := range s.holders {
		t.wait(p, s, why, details)
	}
}

// untranslated tells the pods of a node that it cannot mount a volume of an in-tree type.
func (t *teller) untranslated(s *site) {
	for _, p := range s.holders {
		if why := p.volumes[s.name].untranslated; why != "" && s.has == nil && isManaged(s.object) {
			t.wait(p, s, why, "")
		}
	}
}

func (t *teller) wait(p *podWishes, s *site, why, details string) {
	if t.enter(p, s.name, why) {
		t.send(p, v1.EventTypeWarning, reasonFailed, fmt.Sprintf("volume %q is not attached to node %s: %s%s", specName(p, s.name), s.node, why, details))
	}
}

// enter notes the state of a pod's volume, and reports whether that is news.
func (t *teller) enter(p *podWishes, name v1.UniqueVolumeName, state string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.told[p.pod.UID][name] == state {
		return false
	}
	add(t.told, p.pod.UID, name, state)
	return true
}

// leave reports whether a pod's volume was in a state to tell of, and ends that.
func (t *teller) leave(p *podWishes, name v1.UniqueVolumeName) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.told[p.pod.UID][name]
	remove(t.told, p.pod.UID, name)
	return known
}

// forget is for a pod that is gone.
func (t *teller) forget(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.told, pod)
}

func (t *teller) send(p *podWishes, eventType, reason, message string) {
	if t.sink != nil {
		t.sink.Event(p.pod, eventType, reason, message)
	}
}

func specName(p *podWishes, name v1.UniqueVolumeName) string {
	return p.volumes[name].spec.Name()
}

// tellMultiAttach tells pods who has a volume that may be attached to one node only, and what
// ends that.
func (c *Controller) tellMultiAttach(s, other *site, alsoReadOnly bool) {
	details := detailsOf(other.has)
	if alsoReadOnly {
		details += " (its PersistentVolume has a mode that writes beside ReadOnlyMany; with ReadOnlyMany alone any number of nodes may have it)"
	}
	for _, p := range s.holders {
		why := whyHeld(other, podsOf(other.holders, p.pod.Namespace))
		c.tell.wait(p, s, fmt.Sprintf("Multi-Attach error: only one node may have it at a time, and node %s has it; %s", other.node, why), details)
	}
}

// detailsOf is why the last attempt to detach has failed, to end a sentence.
func detailsOf(a *attachment) string {
	if trouble := a.detachError(); trouble != nil {
		return ": " + trouble.Message
	}
	return ""
}

// whyForeign says what to do about an attachment of somebody else.
func whyForeign(a *attachment) string {
	return fmt.Sprintf("no attach/detach controller has made VolumeAttachment %s for this volume, so whoever made it must delete it", a.object.Name)
}

// whyOlder says what a volume waits for whose PersistentVolume was another volume's before.
func whyOlder(a *attachment) string {
	of := string(a.volume)
	if a.isUnnamed() {
		of = "another volume"
	}
	why := fmt.Sprintf("VolumeAttachment %s was made for %s, when another PersistentVolume was named %s, and must go first", a.object.Name, of, pvOf(a.object))
	switch {
	case a.detachError() != nil:
		return why + "; detaching it fails"
	case a.isGoing():
		return why + "; it is being detached"
	case a.foreign:
		return why + "; delete it once its disk is used no more"
	}
	return why + "; it goes once no pod of the node wants it, and the node does not use it"
}

// whyHeld says why a node keeps a volume, and what to do. users are the pods that use it.
func whyHeld(other *site, users string) string {
	node, used := other.object, other.object != nil && isUsed(other.object, other.name)
	switch {
	case other.has.detachError() != nil:
		return "detaching it fails"
	case other.has != nil && other.has.isGoing():
		return fmt.Sprintf("it is being detached (VolumeAttachment %s)", other.has.object.Name)
	case other.has != nil && other.has.foreign:
		return whyForeign(other.has)
	case node == nil:
		return "its Node object is gone, so it is detached"
	case !isManaged(node):
		return fmt.Sprintf("that node attaches by itself (it has no annotation %s), so only it can detach it", ManagedAnnotation)
	case isReady(node) && isTainted(node) && (users != "" || used):
		return fmt.Sprintf("that node has the taint %s, which is not heeded before its Node is not Ready: it may still write to it. Switch it off, and wait until it is not Ready; or remove the taint", OutOfServiceTaint)
	case !isReady(node) && (users != "" || used):
		return fmt.Sprintf("that node does not answer, and may still write to it. Have it come back; or, if it is switched off for sure, taint it %s=nodeshutdown:NoExecute and delete its pods, or delete its Node", OutOfServiceTaint)
	case users != "":
		return users + " there, and must go first"
	case used:
		return "no pod there wants it, but that node still has it mounted; see the events and the log of its agent"
	}
	return "it is about to be detached"
}

// podsOf names the pods that use a volume. Those of other namespaces than the reader's are
// only counted.
func podsOf(pods []*podWishes, reader string) string {
	var names []string
	hidden := 0
	for _, p := range pods {
		if p.pod.Namespace == reader {
			names = append(names, p.pod.Namespace+"/"+p.pod.Name)
		} else {
			hidden++
		}
	}
	slices.Sort(names)
	switch {
	case len(pods) == 0:
		return ""
	case hidden == 0:
		return "pod " + strings.Join(names, ", ") + " uses it"
	case len(names) == 0:
		return fmt.Sprintf("%d pods of other namespaces use it", hidden)
	}
	return fmt.Sprintf("pod %s and %d of other namespaces use it", strings.Join(names, ", "), hidden)
}
