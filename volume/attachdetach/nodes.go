package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/latest"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

func isManaged(node *v1.Node) bool { return node.Annotations[ManagedAnnotation] == "true" }

// isReady reports whether a node is Ready, or does not say.
func isReady(node *v1.Node) bool {
	return !slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status != v1.ConditionTrue
	})
}

// silences has the nodes that are not Ready, each since when this process has known it. The time in
// their conditions is not heeded: it is by the clock of whoever wrote it. Its zero value has none.
type silences struct {
	mu    sync.Mutex
	since map[types.NodeName]time.Time
}

// put notes a version of a node; nil: it is gone.
func (s *silences) put(name types.NodeName, node *v1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if node == nil || isReady(node) {
		delete(s.since, name)
		return
	}
	if s.since == nil {
		s.since = make(map[types.NodeName]time.Time)
	}
	if _, known := s.since[name]; !known {
		s.since[name] = time.Now()
	}
}

// last returns how long a node is known to be not Ready.
func (s *silences) last(name types.NodeName) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if since, known := s.since[name]; known {
		return time.Since(since)
	}
	return 0
}

// isFenced reports whether an administrator says that a node is switched off. One that is
// Ready is not.
func isFenced(node *v1.Node) bool {
	return !isReady(node) && isTainted(node)
}

func isTainted(node *v1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == OutOfServiceTaint })
}

// isUsed reports whether the node says that it uses a volume.
func isUsed(node *v1.Node, name v1.UniqueVolumeName) bool {
	return slices.Contains(node.Status.VolumesInUse, name)
}

// isListed reports whether the node is told that a volume is attached.
func isListed(node *v1.Node, name v1.UniqueVolumeName) bool {
	return slices.ContainsFunc(node.Status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == name })
}

// nodeChanged enqueues the volumes that a node's change concerns.
func (c *Controller) nodeChanged(name types.NamespacedName, prior, now *v1.Node, how latest.Noticed) {
	node := types.NodeName(name.Name)
	c.listed.put(node, now)
	c.silences.put(node, now)
	switch {
	case how == latest.Listed:
	case prior == nil, now == nil, isManaged(prior) != isManaged(now), isFenced(prior) != isFenced(now), isReady(prior) != isReady(now):
		c.enqueueVolumes(c.attached.volumesOn(node))
		c.enqueueVolumes(c.wishes.volumesOn(node))
		c.enqueuePods(nodeRef(node))
	default:
		if !maps.Equal(prior.Labels, now.Labels) {
			c.enqueuePods(nodeRef(node))
		}
		c.enqueueVolumes(difference(prior, now))
	}
}

func (c *Controller) enqueuePods(ref volume.ObjectRef) {
	for _, pod := range c.wishes.using(ref) {
		c.queue.Enqueue(key{object: pod})
	}
}

// difference returns the volumes that one of two versions of a node lists and the other
// does not, in use or attached.
func difference(prior, now *v1.Node) (names []v1.UniqueVolumeName) {
	changed := make(map[v1.UniqueVolumeName]int)
	for i, node := range []*v1.Node{prior, now} {
		for _, used := range node.Status.VolumesInUse {
			changed[used] ^= 1 << i
		}
		for _, a := range node.Status.VolumesAttached {
			changed[a.Name] ^= 4 << i
		}
	}
	for name, bits := range changed {
		if bits&3 == 1 || bits&3 == 2 || bits>>2 == 1 || bits>>2 == 2 {
			names = append(names, name)
		}
	}
	return names
}

// syncNode tells a node which volumes are attached to it, and says when to look again though
// nothing changes; 0: never.
func (c *Controller) syncNode(ctx context.Context, name types.NodeName) (time.Duration, error) {
	if unanswered := c.telling.begin(name); unanswered {
		if _, _, err := c.nodes.GetLive(ctx, types.NamespacedName{Name: string(name)}); err != nil {
			return 0, err
		}
	}
	after, err := c.tellNode(ctx, name)
	if !errors.Is(err, objects.ErrUncertain) {
		c.enqueueVolumes(c.telling.end(name))
	}
	return after, err
}

func (c *Controller) tellNode(ctx context.Context, name types.NodeName) (time.Duration, error) {
	node, exists, err := c.nodes.Get(ctx, types.NamespacedName{Name: string(name)})
	if err != nil {
		return 0, err
	}
	if !exists {
		c.retelling.forget(name)
		c.enqueueVolumes(c.attached.volumesOn(name))
		return 0, nil
	}
	list := c.listFor(node)
	if !isManaged(node) || slices.Equal(sortedList(node.Status.VolumesAttached), list) {
		return 0, nil
	}
	wait, isNews := c.retelling.pause(node, list)
	if isNews {
		c.log.WarnContext(ctx, "another client has changed the list of attached volumes back: is there another attach/detach controller?", "node", name, "pause", wait)
	}
	if wait > 0 {
		return wait, nil
	}
	next := *node
	next.Status.VolumesAttached = list
	stored, err := objects.Sharing(c.objects).UpdateStatus(ctx, &next)
	if err != nil {
		return 0, c.nodes.Failed(ctx, &next, err)
	}
	c.retelling.note(node, list)
	if stored, ok := stored.(*v1.Node); ok {
		c.nodes.Put(stored)
	}
	return 0, nil
}

// listFor returns what the node's status is to list. A volume that is to go leaves the list
// only if this version of the node does not use it, so that the write orders both.
func (c *Controller) listFor(node *v1.Node) (list []v1.AttachedVolume) {
	for _, a := range c.attached.on(types.NodeName(node.Name)) {
		switch {
		case !a.object.Status.Attached || a.isGoing() || a.foreign:
		case a.leaving && (!isUsed(node, a.volume) || c.isLost(node)):
		default:
			list = append(list, v1.AttachedVolume{Name: a.volume, DevicePath: a.object.Status.AttachmentMetadata[DevicePathKey]})
		}
	}
	return sortedList(append(list, c.withoutObject(node)...))
}

// DevicePathKey is the key, in a VolumeAttachment's metadata, of the device's path on the
// node, where its attacher knows it.
const DevicePathKey = "devicePath"

func sortedList(list []v1.AttachedVolume) []v1.AttachedVolume {
	list = slices.SortedFunc(slices.Values(list), func(a, b v1.AttachedVolume) int { return compareText(a.Name, b.Name) })
	return slices.Compact(list)
}

func compareText[T ~string](a, b T) int { return strings.Compare(string(a), string(b)) }

// isLost reports whether a node is not waited for, though its Node is there.
func (c *Controller) isLost(node *v1.Node) bool {
	return isFenced(node) || c.detachAfter > 0 && c.untilLost(node) == 0
}

func whyLost(node *v1.Node) string {
	if isFenced(node) {
		return ForcedByTaint
	}
	return ForcedByTime
}

// untilLost returns how long it takes until a node that does not answer counts as lost.
func (c *Controller) untilLost(node *v1.Node) time.Duration {
	if isReady(node) || c.detachAfter <= 0 {
		return c.detachAfter
	}
	return max(0, c.detachAfter-c.silences.last(types.NodeName(node.Name)))
}

// room returns how many volumes may be attached at a place; negative: any number.
func (c *Controller) room(ctx context.Context, at place) (limit int, err error) {
	info, err := objects.Get[*storagev1.CSINode](ctx, c.objects, volume.NewObjectRef(kindCSINode, "", string(at.node)))
	if err != nil {
		return -1, pvapi.IgnoreMissing(err)
	}
	for i := range info.Spec.Drivers {
		if d := &info.Spec.Drivers[i]; d.Name == at.attacher && d.Allocatable != nil && d.Allocatable.Count != nil {
			return int(*d.Allocatable.Count), nil
		}
	}
	return -1, nil
}

// whyUntranslated says why a node gets no volume of an in-tree plugin; empty: its CSINode says
// that it mounts those by their CSI drivers. A node writes that before it is Ready.
func whyUntranslated(ctx context.Context, source objects.Getter, node types.NodeName, plugin string) (string, error) {
	info, err := objects.Get[*storagev1.CSINode](ctx, source, volume.NewObjectRef(kindCSINode, "", string(node)))
	if errors.Is(err, volume.ErrNotFound) {
		return fmt.Sprintf("the node has no CSINode, which must say that it mounts volumes of %s by their CSI driver (annotation %s); have the node's agent write it",
			plugin, v1.MigratedPluginsAnnotationKey), nil
	}
	if err != nil || slices.Contains(strings.Split(info.Annotations[v1.MigratedPluginsAnnotationKey], ","), plugin) {
		return "", err
	}
	return fmt.Sprintf("the node's CSINode does not say that it mounts volumes of %s by their CSI driver (annotation %s); have the node's agent translate them, or the pod run on another node",
		plugin, v1.MigratedPluginsAnnotationKey), nil
}
