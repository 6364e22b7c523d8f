package attachdetach

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// VolumeAnnotation has, in the VolumeAttachments that a [Controller] makes, the unique name
// of their volume: it is known from it also once the PersistentVolume is gone.
const VolumeAnnotation = "podvol.io/volume"

// attachment is a VolumeAttachment and the volume that it is of.
type attachment struct {
	object *storagev1.VolumeAttachment
	volume v1.UniqueVolumeName
	// foreign: nothing says that an attach/detach controller has made it for this volume. It
	// counts as attached for other nodes, its own is not told of it, and it is left alone.
	foreign bool
	// leaving: it is not wanted, and is taken from the node's list before it is deleted.
	leaving bool
	// deleted: its deletion was asked for. It is finished then, since it may take effect
	// whatever the answer was, and a cache may show the object for a while as it was.
	deleted bool
}

// isGoing reports whether what is attached is detached, or may be at any moment.
func (a *attachment) isGoing() bool { return a.deleted || a.object.DeletionTimestamp != nil }

// detachError is why the last attempt to detach has failed; nil: it is not being detached, or
// none has.
func (a *attachment) detachError() *storagev1.VolumeError {
	if a == nil || a.object.DeletionTimestamp == nil {
		return nil
	}
	return a.object.Status.DetachError
}

// isUnnamed reports whether the unique name of the volume is not known.
func (a *attachment) isUnnamed() bool {
	return a.volume == unnamed(a.object)
}

// isLeft reports whether an attachment is of a volume that nothing tells, and has the name that an
// attach/detach controller gives. It does not outlive its node, which alone may use it.
func (a *attachment) isLeft() bool {
	prefix, sum, _ := strings.Cut(a.object.Name, "-")
	_, err := hex.DecodeString(sum)
	return a.isUnnamed() && (prefix == "csi" || prefix == "podvol") && len(sum) == 2*sha256.Size && err == nil
}

// unnamed stands for the unique name of a volume of which nothing else is known.
func unnamed(a *storagev1.VolumeAttachment) v1.UniqueVolumeName {
	return v1.UniqueVolumeName("unknown/" + a.Name)
}

// pvOf is the name of an attachment's PersistentVolume; empty: it has none.
func pvOf(a *storagev1.VolumeAttachment) string {
	return ptr.Deref(a.Spec.Source.PersistentVolumeName, "")
}

func (a *attachment) node() types.NodeName { return types.NodeName(a.object.Spec.NodeName) }

// attachedTable has all VolumeAttachments.
type attachedTable struct {
	mu      sync.Mutex
	names   map[string]*attachment
	volumes map[v1.UniqueVolumeName]map[string]*attachment
	nodes   map[types.NodeName]map[string]*attachment
	// foreign are those that no controller is known to have made, by PersistentVolume.
	foreign map[string]map[string]*attachment
	// unanswered are those of which it is not known whether they were made, by volume.
	unanswered map[v1.UniqueVolumeName]unanswered
	// making is how many attachments are being made, by node and attacher.
	making map[place]int
	// waiting are the volumes for which a place had no room.
	waiting map[place]map[v1.UniqueVolumeName]bool
}

// place is where an attacher attaches.
type place struct {
	node     types.NodeName
	attacher string
}

func newAttachedTable() *attachedTable {
	return &attachedTable{names: make(map[string]*attachment), volumes: make(map[v1.UniqueVolumeName]map[string]*attachment),
		nodes: make(map[types.NodeName]map[string]*attachment), foreign: make(map[string]map[string]*attachment),
		unanswered: make(map[v1.UniqueVolumeName]unanswered), making: make(map[place]int), waiting: make(map[place]map[v1.UniqueVolumeName]bool)}
}

// put notes a version of a VolumeAttachment; nil: it is gone. It returns what was known. It does
// nothing if that is not the last word any more: what two workers note at once must not come in
// the wrong order, not even for a moment.
func (t *attachedTable) put(name string, now *attachment, isLast func() bool) (prior *attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !isLast() {
		return nil
	}
	prior = t.names[name]
	if prior != nil && now != nil && prior.object.UID == now.object.UID {
		now.leaving, now.deleted = prior.leaving, prior.deleted
		if now.foreign && !prior.isUnnamed() { // recognized meanwhile
			now.volume, now.foreign = prior.volume, prior.foreign
		}
	}
	t.replace(name, prior, now)
	return prior
}

// replace changes what is known of a VolumeAttachment; nil: nothing. The caller has the lock.
func (t *attachedTable) replace(name string, prior, now *attachment) {
	if prior != nil {
		delete(t.names, name)
		remove(t.volumes, prior.volume, name)
		remove(t.nodes, prior.node(), name)
		remove(t.foreign, pvOf(prior.object), name)
	}
	if now == nil {
		return
	}
	t.names[name] = now
	add(t.volumes, now.volume, name, now)
	add(t.nodes, now.node(), name, now)
	if now.foreign {
		add(t.foreign, pvOf(now.object), name, now)
	}
}

// recognize finds, by their names, the attachments of a volume among those that no controller is
// known to have made. It returns what was known of them.
func (t *attachedTable) recognize(volume v1.UniqueVolumeName) (priors []*attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, all := range t.foreign {
		for name, a := range all {
			if name == attachmentName(volume, a.node()) {
				priors = append(priors, a)
			}
		}
	}
	for _, prior := range priors {
		now := *prior
		now.volume, now.foreign = volume, false
		t.replace(now.object.Name, prior, &now)
	}
	return priors
}

// foreignOf returns the attachments of a PersistentVolume that may tell their volume now.
func (t *attachedTable) foreignOf(pv string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.foreign[pv]))
}

func (t *attachedTable) last(name string) (attachment, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a, known := t.names[name]
	if !known {
		return attachment{}, false
	}
	return *a, true
}

// setLeaving notes whether an attachment is to go, and reports whether that is news.
func (t *attachedTable) setLeaving(a *attachment, leaving bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, known := t.names[a.object.Name]
	if !known || now.object.UID != a.object.UID || now.leaving == leaving {
		return false
	}
	now.leaving = leaving
	return true
}

// delete notes that the deletion of an attachment is asked for.
func (t *attachedTable) delete(a *attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now, known := t.names[a.object.Name]; known && now.object.UID == a.object.UID {
		now.deleted = true
	}
}

// of returns the attachments of a volume, in order; the caller owns them.
func (t *attachedTable) of(name v1.UniqueVolumeName) []attachment {
	t.mu.Lock()
	defer t.mu.Unlock()
	return copies(t.volumes[name])
}

// on returns the attachments to a node, in order; the caller owns them.
func (t *attachedTable) on(node types.NodeName) []attachment {
	t.mu.Lock()
	defer t.mu.Unlock()
	return copies(t.nodes[node])
}

func copies(all map[string]*attachment) []attachment {
	list := make([]attachment, 0, len(all))
	for _, a := range all {
		list = append(list, *a)
	}
	slices.SortFunc(list, func(a, b attachment) int {
		return cmp.Or(cmp.Compare(a.volume, b.volume), cmp.Compare(a.object.Name, b.object.Name))
	})
	return list
}

func (t *attachedTable) volumesOn(node types.NodeName) (names []v1.UniqueVolumeName) {
	for _, a := range t.on(node) {
		names = append(names, a.volume)
	}
	return slices.Compact(names)
}

// reserve makes room for an attachment of a volume that is about to be made, if there are fewer
// than limit at a place; a negative limit: there is none. If there is no room, the volume waits
// from the same moment on. release returns the volumes that wait by then: what is made counts
// twice until then, and what could not be made leaves its room.
func (t *attachedTable) reserve(volume v1.UniqueVolumeName, at place, limit int) (release func() []v1.UniqueVolumeName, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.making[at]
	for a := range maps.Values(t.nodes[at.node]) {
		if a.object.Spec.Attacher == at.attacher {
			n++
		}
	}
	if limit >= 0 && n >= limit {
		add(t.waiting, at, volume, true)
		return nil, false
	}
	t.making[at]++
	return func() []v1.UniqueVolumeName {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.making[at]--; t.making[at] == 0 {
			delete(t.making, at)
		}
		return t.takeWaiting(at)
	}, true
}

// takeWaiting returns, and forgets, the volumes for which a place had no room. The caller has
// the lock.
func (t *attachedTable) takeWaiting(at place) []v1.UniqueVolumeName {
	names := slices.Collect(maps.Keys(t.waiting[at]))
	delete(t.waiting, at)
	return names
}

// roomAfter is takeWaiting for where an attachment is gone.
func (t *attachedTable) roomAfter(gone *attachment) []v1.UniqueVolumeName {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.takeWaiting(place{gone.node(), gone.object.Spec.Attacher})
}

// unanswered is a VolumeAttachment whose creation may take effect yet.
type unanswered struct {
	name string
	node types.NodeName
	// until is when the API has given it up for sure.
	until time.Time
}

// lateWrite is how long a write may take effect after its answer was lost: an API server gives a
// request up after a minute.
const lateWrite = time.Minute

// setUnanswered notes that a volume's attachment may be made late; nil: no more.
func (t *attachedTable) setUnanswered(volume v1.UniqueVolumeName, u *unanswered) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if u == nil {
		delete(t.unanswered, volume)
	} else {
		t.unanswered[volume] = *u
	}
}

func (t *attachedTable) unansweredOf(volume v1.UniqueVolumeName) (u unanswered, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	u, ok = t.unanswered[volume]
	return u, ok
}

// mayBeMade returns where else than is known a volume may be attached soon, and for how long;
// empty: nowhere.
func (c *Controller) mayBeMade(ctx context.Context, volume v1.UniqueVolumeName) (node types.NodeName, left time.Duration, err error) {
	u, ok := c.attached.unansweredOf(volume)
	if !ok {
		return "", 0, nil
	}
	left = time.Until(u.until) // before the read
	if _, known := c.attached.last(u.name); !known {
		if err := c.readLive(ctx, u.name); err != nil {
			return "", 0, err
		}
	}
	if left <= 0 {
		c.attached.setUnanswered(volume, nil)
		return "", 0, nil
	}
	return u.node, left, nil
}

// syncAttachment takes note of a VolumeAttachment.
func (c *Controller) syncAttachment(ctx context.Context, name types.NamespacedName) error {
	a, exists, err := c.attachments.Get(ctx, name)
	if err != nil {
		return err
	}
	if exists {
		return c.takeAttachment(ctx, a)
	}
	c.attachmentGone(name.Name)
	return nil
}

func (c *Controller) attachmentGone(name string) {
	prior := c.attached.put(name, nil, func() bool {
		_, known := c.attachments.Last(types.NamespacedName{Name: name})
		return !known
	})
	if prior == nil {
		return
	}
	c.queue.Enqueue(key{volume: prior.volume})
	c.queue.Enqueue(key{object: nodeRef(prior.node())})
	c.enqueueVolumes(c.attached.roomAfter(prior))
	if pv := pvOf(prior.object); pv != "" {
		c.enqueuePods(pvapi.VolumeRef(pv)) // see olderOf
	}
}

// takeAttachment notes a version of a VolumeAttachment, and enqueues its volume and its node. If
// there is a newer one by then, that counts: two of them may be noted at once.
func (c *Controller) takeAttachment(ctx context.Context, a *storagev1.VolumeAttachment) error {
	for {
		now, err := c.identify(ctx, a)
		if err != nil {
			return err
		}
		c.attached.put(a.Name, now, func() bool {
			last, known := c.attachments.Last(types.NamespacedName{Name: a.Name})
			return known && last.UID == a.UID && last.ResourceVersion == a.ResourceVersion
		})
		c.queue.Enqueue(key{volume: now.volume})
		c.queue.Enqueue(key{object: nodeRef(types.NodeName(a.Spec.NodeName))})
		last, known := c.attachments.Last(types.NamespacedName{Name: a.Name})
		if !known {
			c.attachmentGone(a.Name)
			return nil
		}
		if last.UID == a.UID && last.ResourceVersion == a.ResourceVersion {
			return nil
		}
		a = last
	}
}

// identify finds out which volume an attachment is of.
func (c *Controller) identify(ctx context.Context, a *storagev1.VolumeAttachment) (*attachment, error) {
	if known, ok := c.attached.last(a.Name); ok && known.object.UID == a.UID && !known.isUnnamed() {
		return &attachment{object: a, volume: known.volume, foreign: known.foreign}, nil
	}
	// The annotation comes first: another PersistentVolume may have that name by now.
	if ours := a.Annotations[VolumeAnnotation]; ours != "" {
		return &attachment{object: a, volume: v1.UniqueVolumeName(ours)}, nil
	}
	if name := c.nameAt(a); name != "" {
		return &attachment{object: a, volume: name}, nil
	}
	spec, err := c.specOf(ctx, a)
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return nil, err
	}
	if err == nil && spec != nil {
		if known := c.identifyBy(a, spec); known != nil {
			return known, nil
		}
	}
	return &attachment{object: a, volume: unnamed(a), foreign: true}, nil
}

// specOf returns what an attachment's source says of the volume; nil: nothing.
func (c *Controller) specOf(ctx context.Context, a *storagev1.VolumeAttachment) (*volume.Spec, error) {
	if inline := a.Spec.Source.InlineVolumeSpec; inline != nil {
		return volume.NewSpecFromPersistentVolume(&v1.PersistentVolume{Spec: *inline}, false), nil
	}
	name := pvOf(a)
	if name == "" {
		return nil, nil
	}
	pv, err := objects.Get[*v1.PersistentVolume](ctx, c.objects, pvapi.VolumeRef(name))
	if err != nil {
		return nil, err
	}
	spec := volume.NewSpecFromPersistentVolume(pv, false)
	if translated, err := c.plugins.Translate(c.translator, spec, ""); err == nil {
		return translated, nil
	}
	return spec, nil
}

// identifyBy identifies an attachment by its PersistentVolume; nil: that is not what is
// attached.
func (c *Controller) identifyBy(a *storagev1.VolumeAttachment, spec *volume.Spec) *attachment {
	kind, name, err := c.kindOf(spec)
	if kind == nil || err != nil || kind.attacher(spec) != a.Spec.Attacher {
		return nil
	}
	return &attachment{object: a, volume: name, foreign: a.Name != attachmentName(name, types.NodeName(a.Spec.NodeName))}
}

// nameAt identifies an attachment by what its node lists, or uses: the PersistentVolume may be
// gone, or another one may have its name. Empty: the node does not tell.
func (c *Controller) nameAt(a *storagev1.VolumeAttachment) v1.UniqueVolumeName {
	node, exists := c.nodes.Last(types.NamespacedName{Name: a.Spec.NodeName})
	if !exists {
		return ""
	}
	names := slices.Clone(node.Status.VolumesInUse)
	for i := range node.Status.VolumesAttached {
		names = append(names, node.Status.VolumesAttached[i].Name)
	}
	i := slices.IndexFunc(names, func(name v1.UniqueVolumeName) bool {
		return a.Name == attachmentName(name, types.NodeName(a.Spec.NodeName))
	})
	if i < 0 {
		return ""
	}
	return names[i]
}

// olderOf returns an attachment to a node of another volume, which names the PersistentVolume of
// this one: another had its name. Whoever detaches it by that name detaches this volume.
func (t *attachedTable) olderOf(pv string, node types.NodeName, volume v1.UniqueVolumeName) *attachment {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.nodes[node] {
		isKept := a.object.Annotations[VolumeAnnotation] != "" && !isDrivers(a.volume) // an Attacher heeds it
		if pv != "" && pvOf(a.object) == pv && a.volume != volume && !isKept {
			older := *a
			return &older
		}
	}
	return nil
}

// recognize has the attachments counted that are of a volume by their names alone: their
// PersistentVolume is gone, or is another volume's by now.
func (c *Controller) recognize(name v1.UniqueVolumeName) {
	for _, prior := range c.attached.recognize(name) {
		c.queue.Enqueue(key{volume: prior.volume})
		c.queue.Enqueue(key{object: nodeRef(prior.node())})
	}
}
