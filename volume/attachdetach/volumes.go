package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// site is a volume at a node.
type site struct {
	name v1.UniqueVolumeName
	node types.NodeName
	// object is the Node; nil: there is none.
	object *v1.Node
	// has is the volume's attachment to the node; nil: there is none.
	has *attachment
	// listed: the node lists it as attached.
	listed bool
	// holders are the pods of the node that have the volume, or want it.
	holders []*podWishes
	// lostIn is when those of them that are being deleted cease to; 0: that is not known.
	lostIn time.Duration
}

// wanted returns the volume as a pod of the node wants it attached; nil: none does.
func (s *site) wanted() *wanted {
	for _, p := range s.holders {
		if w := p.volumes[s.name]; w.attaches {
			return w
		}
	}
	return nil
}

// sitesOf returns a volume's sites: those that have it, then those whose pods want it, the
// oldest first.
func (c *Controller) sitesOf(ctx context.Context, name v1.UniqueVolumeName) ([]*site, error) {
	var sites []*site
	at := func(node types.NodeName) (*site, error) {
		if i := slices.IndexFunc(sites, func(s *site) bool { return s.node == node }); i >= 0 {
			return sites[i], nil
		}
		object, _, err := c.nodes.Get(ctx, types.NamespacedName{Name: string(node)})
		s := &site{name: name, node: node, object: object}
		sites = append(sites, s)
		return s, err
	}
	c.recognize(name)
	for _, a := range c.attached.of(name) {
		s, err := at(a.node())
		if err != nil {
			return nil, err
		}
		if s.has == nil || s.has.foreign {
			s.has = &a
		}
	}
	for _, node := range c.listed.on(name) {
		s, err := at(node)
		if err != nil {
			return nil, err
		}
		s.listed = s.object != nil
	}
	for _, p := range c.wishes.of(name) {
		s, err := at(p.node)
		if err != nil {
			return nil, err
		}
		c.hold(s, p)
	}
	return sites, nil
}

// hold adds a pod to those that hold a volume at a node, unless the node is gone, or the pod
// is being deleted and the node is lost.
func (c *Controller) hold(s *site, p *podWishes) {
	leaves := p.pod.DeletionTimestamp != nil
	if s.object == nil || leaves && c.isLost(s.object) {
		return
	}
	s.holders = append(s.holders, p)
	if leaves && !isReady(s.object) {
		s.lostIn = c.untilLost(s.object)
	}
}

// syncVolume attaches a volume where it is wanted, and detaches it where it is not.
func (c *Controller) syncVolume(ctx context.Context, name v1.UniqueVolumeName) (after time.Duration, err error) {
	late, after, err := c.mayBeMade(ctx, name)
	if err != nil {
		return 0, err
	}
	sites, err := c.sitesOf(ctx, name)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, s := range sites {
		switch {
		case s.has != nil && (s.has.deleted || len(s.holders) == 0):
			errs = append(errs, c.detach(ctx, s))
		case s.has == nil && s.listed && len(s.holders) == 0:
			c.queue.Enqueue(key{object: nodeRef(s.node)})
			s.lostIn = c.untilLost(s.object)
		}
		if s.lostIn > 0 && (after == 0 || s.lostIn < after) {
			after = s.lostIn
		}
	}
	for _, s := range sites {
		c.tell.untranslated(s)
		w := s.wanted()
		if w != nil && isManaged(s.object) && (late == "" || late == s.node || isShared(w.spec)) {
			errs = append(errs, c.attach(ctx, s, w, sites))
		}
	}
	return after, errors.Join(errs...)
}

// detach does the next step to detach a volume that no pod of the node wants: it takes the
// volume from the node's list, and then deletes the attachment.
func (c *Controller) detach(ctx context.Context, s *site) error {
	switch {
	case s.has.object.DeletionTimestamp != nil || s.has.foreign && (s.object != nil || !s.has.isLeft()):
		return nil // its attacher has it, or whoever made it
	case s.has.deleted:
		return c.delete(ctx, s)
	}
	if s.object == nil {
		if _, exists, err := c.nodes.GetLive(ctx, types.NamespacedName{Name: string(s.node)}); err != nil || exists {
			return err // what is read anew enqueues the volume
		}
		return c.delete(ctx, s)
	}
	if !isManaged(s.object) || c.wishes.isUnsureOn(s.node) {
		return nil // a pod that is not known for sure is read again, and enqueues what was kept for it
	}
	if !c.telling.letGo(s.node, s.name, func() bool { return c.isFree(s) }) {
		return nil
	}
	return c.delete(ctx, s)
}

// isFree reports whether a node neither uses a volume nor is told that it may, and sees to it
// that it will not be told. If it returns false, what is awaited enqueues the volume.
func (c *Controller) isFree(s *site) bool {
	node, exists := c.nodes.Last(types.NamespacedName{Name: string(s.node)})
	switch {
	case !exists:
		return false
	case isUsed(node, s.name) && !c.isLost(node):
		s.lostIn = c.untilLost(node)
		c.setLeaving(s, false)
		return false
	case isListed(node, s.name):
		c.setLeaving(s, true)
		c.queue.Enqueue(key{object: nodeRef(s.node)})
		return false
	}
	if isUsed(node, s.name) {
		c.forced.add(whyLost(node))
	}
	c.attached.delete(s.has)
	return true
}

// setLeaving has the node's list made anew, if that is news.
func (c *Controller) setLeaving(s *site, leaving bool) {
	if c.attached.setLeaving(s.has, leaving) {
		c.queue.Enqueue(key{object: nodeRef(s.node)})
	}
}

// delete deletes an attachment. What was attached is detached by its attacher, which keeps
// the object by a finalizer until then.
func (c *Controller) delete(ctx context.Context, s *site) error {
	object := s.has.object
	c.attached.delete(s.has)
	err := c.objects.Delete(ctx, volume.NewObjectRef(pvapi.KindAttachment, "", object.Name), objects.Preconditions{UID: object.UID})
	if err == nil {
		return nil
	}
	if !errors.Is(err, volume.ErrNotFound) && !errors.Is(err, objects.ErrConflict) {
		return c.attachments.Failed(ctx, object, err)
	}
	return c.readLive(ctx, object.Name)
}

// readLive notes what the API itself has of an attachment.
func (c *Controller) readLive(ctx context.Context, name string) error {
	now, exists, err := c.attachments.GetLive(ctx, types.NamespacedName{Name: name})
	if err != nil {
		return err
	}
	if exists {
		return c.takeAttachment(ctx, now)
	}
	c.attachmentGone(name)
	return nil
}

// attach does what a volume that a pod of a managed node wants needs now, and tells the pods
// what it waits for.
func (c *Controller) attach(ctx context.Context, s *site, w *wanted, all []*site) error {
	if s.has != nil {
		c.keep(s)
		return nil
	}
	if other := blocking(s, w.spec, all); other != nil {
		c.tellMultiAttach(s, other, slices.Contains(w.spec.PersistentVolume.Spec.AccessModes, v1.ReadOnlyMany))
		return nil
	}
	if older := c.attached.olderOf(pvOfSpec(w.spec), s.node, s.name); older != nil {
		c.tell.waits(s, whyOlder(older), detailsOf(older))
		return nil
	}
	at := place{s.node, w.kind.attacher(w.spec)}
	limit, err := c.room(ctx, at)
	if err != nil {
		return err
	}
	release, ok := c.attached.reserve(s.name, at, limit)
	if !ok {
		c.tell.waits(s, fmt.Sprintf("node %s has %d volumes of driver %s attached, which is all that its CSINode allows; the volume is attached once another is not", s.node, limit, at.attacher), "")
		return nil
	}
	defer func() { c.enqueueVolumes(release()) }() // it counts as attached by then, if it is
	c.tell.attaching(s)
	return c.create(ctx, s, w)
}

// keep sees to a volume that is attached, is being attached, or is being detached.
func (c *Controller) keep(s *site) {
	object := s.has.object
	switch {
	case s.has.detachError() != nil:
		c.tell.waits(s, "detaching it from there fails; it is attached anew once that has succeeded", detailsOf(s.has))
	case s.has.isGoing():
		c.tell.attaching(s) // and it is attached anew once it is gone
	case s.has.foreign && !s.listed:
		c.tell.waits(s, whyForeign(s.has)+"; it is attached then", "")
	case object.Status.Attached:
		c.tell.attached(s)
	case object.Status.AttachError != nil:
		c.tell.waits(s, "attaching it failed", ": "+object.Status.AttachError.Message)
	}
	c.setLeaving(s, false)
}

// isShared reports whether several nodes may have a volume. ReadOnlyMany beside a mode that writes
// does not say it: nodes mount such a volume for writing.
func isShared(spec *volume.Spec) bool {
	modes := spec.PersistentVolume.Spec.AccessModes
	writes := func(mode v1.PersistentVolumeAccessMode) bool { return mode != v1.ReadOnlyMany }
	return slices.Contains(modes, v1.ReadWriteMany) || !slices.ContainsFunc(modes, writes)
}

// blocking returns the site that has a volume which only one node may have at a time.
func blocking(s *site, spec *volume.Spec, all []*site) *site {
	if isShared(spec) {
		return nil
	}
	for _, other := range all {
		if other != s && (other.has != nil || other.listed) {
			return other
		}
	}
	return nil
}

// create makes an attachment. It is noted at once, so that the volume is not attached to
// another node beside it.
func (c *Controller) create(ctx context.Context, s *site, w *wanted) error {
	name := attachmentName(s.name, s.node)
	object := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{VolumeAnnotation: string(s.name)}},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: w.kind.attacher(w.spec), NodeName: string(s.node), Source: sourceOf(w.spec)},
	}
	s.has = &attachment{object: object, volume: s.name} // it may be there whatever the answer is
	stored, err := objects.Sharing(c.objects).Create(ctx, object)
	switch {
	case err == nil:
		made, ok := stored.(*storagev1.VolumeAttachment)
		if !ok {
			return fmt.Errorf("the store answered with a %T", stored)
		}
		return c.takeAttachment(ctx, c.attachments.Put(made))
	case errors.Is(err, objects.ErrExists), errors.Is(err, objects.ErrUncertain):
		unread := c.readLive(ctx, object.Name)
		if _, known := c.attached.last(object.Name); known && unread == nil {
			return unlessExists(err)
		}
		c.attached.setUnanswered(s.name, &unanswered{object.Name, s.node, time.Now().Add(lateWrite)})
		return errors.Join(unread, err)
	}
	return err
}

// sourceOf is what a VolumeAttachment says of its volume: the PersistentVolume as it is in the
// API, or what an inline volume was translated to.
func sourceOf(spec *volume.Spec) storagev1.VolumeAttachmentSource {
	if spec.InlineVolumeSpecForCSIMigration {
		return storagev1.VolumeAttachmentSource{InlineVolumeSpec: spec.PersistentVolume.Spec.DeepCopy()}
	}
	name := spec.PersistentVolume.Name // a pointer into the volume would keep all of that
	return storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}
}

// pvOfSpec is the name that sourceOf has; empty: none.
func pvOfSpec(spec *volume.Spec) string {
	return ptr.Deref(sourceOf(spec).PersistentVolumeName, "")
}

// unlessExists drops the error of a write whose object was there already, for sure.
func unlessExists(err error) error {
	if errors.Is(err, objects.ErrExists) && !errors.Is(err, objects.ErrUncertain) {
		return nil
	}
	return err
}
