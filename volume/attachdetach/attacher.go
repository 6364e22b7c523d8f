package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/latest"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/objects"
)

// AttachedFinalizer is on the VolumeAttachments that an [Attacher] works on, and on their
// PersistentVolumes: it keeps what must be known to detach.
const AttachedFinalizer = "podvol.io/attached"

// AttacherConfig is what an [Attacher] is made of.
type AttacherConfig struct {
	// Objects are the API's, or a store's. All VolumeAttachments and PersistentVolumes are
	// watched.
	Objects objects.Client
	// Plugins attach, those of them that are a [volume.SpecAttacher].
	Plugins *volume.VolumePluginMgr
	// NodeName is the node whose attachments are worked on, for an agent that attaches what
	// it mounts; empty: those of all nodes.
	NodeName types.NodeName
	// CSI has the plugin of CSI volumes attach, too. It must be false where drivers have
	// their external-attachers, which do the same.
	CSI bool
	// Logger takes failed attempts, which are tried again; nil drops them.
	Logger *slog.Logger
}

// Attacher attaches what VolumeAttachments name, by plugins that can, and detaches it once
// they are deleted, as a CSI driver's external-attacher does.
//
//   - A finalizer is on the VolumeAttachment before its volume is attached, and until it is
//     detached. So it is the record of what may be attached, whatever crashes.
//   - The result, or the error, is in its status. A failed attempt is repeated.
//   - One attachment is one operation at a time; one that hangs delays no other.
type Attacher struct {
	objects     objects.Client
	plugins     *volume.VolumePluginMgr
	node        types.NodeName
	csi         bool
	log         *slog.Logger
	attachments *latest.Objects[*storagev1.VolumeAttachment]
	queue       *work.Queue[volume.ObjectRef]
	ran         atomic.Bool
}

// NewAttacher returns an attacher that does nothing until it is run.
func NewAttacher(config AttacherConfig) *Attacher {
	a := &Attacher{objects: config.Objects, plugins: config.Plugins, node: config.NodeName, csi: config.CSI, log: config.Logger}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	a.attachments = latest.New(a.objects, pvapi.KindAttachment, a.changed)
	a.queue = work.NewQueue(work.Config[volume.ObjectRef]{Reconcile: a.reconcile, Refresh: a.refresh, Conflict: objects.ErrConflict})
	return a
}

// Run works until ctx ends and then returns nil, after all that it began has ended. The error
// is [ErrRunOnce], or says why the objects could not be listed.
func (a *Attacher) Run(ctx context.Context) error {
	if a.ran.Swap(true) {
		return ErrRunOnce
	}
	defer a.objects.WatchKind(pvapi.KindAttachment, a.queue.EnqueueIfChanged)()
	defer a.objects.WatchKind(pvapi.KindVolume, a.queue.Enqueue)()
	if _, _, err := a.attachments.CatchUp(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	volumes, err := objects.List[*v1.PersistentVolume](ctx, a.objects, pvapi.KindVolume, "")
	if err != nil {
		return err
	}
	for _, pv := range volumes {
		a.queue.Enqueue(pvapi.VolumeRef(pv.Name))
	}
	a.queue.Start(ctx)
	<-ctx.Done()
	a.queue.Wait()
	return nil
}

// changed enqueues an attachment and, once it is gone, its PersistentVolume. That an attempt
// has failed is no reason for the next one.
func (a *Attacher) changed(name types.NamespacedName, prior, now *storagev1.VolumeAttachment, _ latest.Noticed) {
	if now != nil {
		if prior == nil || !isSameWork(prior, now) {
			a.queue.Enqueue(volume.NewObjectRef(pvapi.KindAttachment, "", name.Name))
		}
		return
	}
	if pv := pvOf(prior); pv != "" {
		a.queue.Enqueue(pvapi.VolumeRef(pv))
	}
}

// isSameWork reports whether two versions of an attachment differ in nothing but its errors.
func isSameWork(a, b *storagev1.VolumeAttachment) bool {
	return a.UID == b.UID && (a.DeletionTimestamp == nil) == (b.DeletionTimestamp == nil) && a.Status.Attached == b.Status.Attached && slices.Equal(a.Finalizers, b.Finalizers)
}

// refresh reads an attachment, which enqueues it if there is work to do.
func (a *Attacher) refresh(ctx context.Context, ref volume.ObjectRef) work.Result {
	if ref.Kind != pvapi.KindAttachment {
		return a.reconcile(ctx, ref)
	}
	_, _, err := a.attachments.Get(ctx, ref.NamespacedName)
	return work.Result{Reason: err}
}

func (a *Attacher) reconcile(ctx context.Context, ref volume.ObjectRef) work.Result {
	var err error
	if ref.Kind == pvapi.KindVolume {
		err = a.syncVolume(ctx, ref)
	} else {
		err = a.syncAttachment(ctx, ref.NamespacedName)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, objects.ErrConflict) {
		a.log.Warn("to be tried again", "object", ref.String(), "error", err)
	}
	return work.Result{Reason: err}
}

// syncVolume lets a PersistentVolume go that nothing attaches any more, and has the
// attachments tried that waited for it.
func (a *Attacher) syncVolume(ctx context.Context, ref volume.ObjectRef) error {
	pv, err := objects.Get[*v1.PersistentVolume](ctx, a.objects, ref)
	if err != nil {
		return pvapi.IgnoreMissing(err)
	}
	if a.isUsed(pv.Name) || !slices.Contains(pv.Finalizers, AttachedFinalizer) {
		return nil
	}
	// Another attacher may have made one that the cache has not heard of.
	if _, _, err := a.attachments.CatchUp(ctx); err != nil || a.isUsed(pv.Name) {
		return err
	}
	next := pv.DeepCopy()
	next.Finalizers = pvapi.Without(next.Finalizers, AttachedFinalizer)
	_, err = a.objects.Update(ctx, next)
	return pvapi.IgnoreMissing(err)
}

// isUsed reports whether there are attachments of a PersistentVolume, and enqueues those that
// are not worked on yet.
func (a *Attacher) isUsed(pv string) (used bool) {
	for _, object := range a.attachments.All() {
		if pvOf(object) != pv {
			continue
		}
		used = true
		if !slices.Contains(object.Finalizers, AttachedFinalizer) {
			a.queue.Enqueue(volume.NewObjectRef(pvapi.KindAttachment, "", object.Name))
		}
	}
	return used
}

// syncAttachment does the next step for one attachment.
func (a *Attacher) syncAttachment(ctx context.Context, name types.NamespacedName) error {
	object, exists, err := a.attachments.Get(ctx, name)
	if err != nil || !exists || a.node != "" && object.Spec.NodeName != string(a.node) {
		return err
	}
	held := slices.Contains(object.Finalizers, AttachedFinalizer)
	if object.DeletionTimestamp != nil && !held || object.DeletionTimestamp == nil && object.Status.Attached {
		return nil
	}
	plugin, spec, err := a.pluginOf(ctx, object)
	switch {
	case err != nil && held && errors.Is(err, volume.ErrNotFound):
		return a.fail(ctx, object, fmt.Errorf("PersistentVolume %q is gone, which says what to detach: once you have seen that it is detached from node %s, remove the finalizer %s of this object", pvOf(object), object.Spec.NodeName, AttachedFinalizer))
	case plugin == nil || err != nil:
		return pvapi.IgnoreMissing(err)
	case object.DeletionTimestamp != nil:
		return a.detach(ctx, object, plugin, spec)
	case !held:
		return a.hold(ctx, object)
	}
	return a.attach(ctx, object, plugin, spec)
}

// pluginOf returns the plugin that attaches, and the volume; nil: somebody else does.
func (a *Attacher) pluginOf(ctx context.Context, object *storagev1.VolumeAttachment) (volume.SpecAttacher, *volume.Spec, error) {
	pv, err := objects.Get[*v1.PersistentVolume](ctx, a.objects, pvapi.VolumeRef(pvOf(object)))
	if err != nil {
		return nil, nil, err
	}
	spec := volume.NewSpecFromPersistentVolume(pv, false)
	isCSI := pv.Spec.CSI != nil
	if isCSI && (!a.csi || pv.Spec.CSI.Driver != object.Spec.Attacher) {
		return nil, nil, nil
	}
	plugin, err := a.plugins.FindPluginBySpec(spec)
	if err != nil {
		return nil, nil, err
	}
	if is, err := uniqueName(plugin, spec); err != nil || !isNamed(object, is) {
		return nil, nil, errors.Join(err, fmt.Errorf("PersistentVolume %q is %s, %w: another one had its name when VolumeAttachment %s was made", pv.Name, is, volume.ErrNotFound, object.Name))
	}
	if attachable, ok := volume.AsAttachable(plugin); !isCSI && (!ok || pluginVolumes{attachable}.attacher(spec) != object.Spec.Attacher) {
		return nil, nil, nil
	}
	able, _ := plugin.(volume.SpecAttacher)
	return able, spec, nil
}

// isNamed reports whether an attachment is of a volume, as far as it says.
func isNamed(object *storagev1.VolumeAttachment, is v1.UniqueVolumeName) bool {
	name := object.Annotations[VolumeAnnotation]
	return name == "" || name == string(is)
}

// hold puts the finalizer on an attachment, before anything is attached.
func (a *Attacher) hold(ctx context.Context, object *storagev1.VolumeAttachment) error {
	next := object.DeepCopy()
	next.Finalizers = append(next.Finalizers, AttachedFinalizer)
	return a.write(ctx, a.objects.Update, next)
}

func (a *Attacher) attach(ctx context.Context, object *storagev1.VolumeAttachment, plugin volume.SpecAttacher, spec *volume.Spec) error {
	pv := spec.PersistentVolume
	if pv.DeletionTimestamp != nil {
		return a.fail(ctx, object, fmt.Errorf("PersistentVolume %q is being deleted, and is not attached any more", pv.Name))
	}
	if !slices.Contains(pv.Finalizers, AttachedFinalizer) {
		next := pv.DeepCopy()
		next.Finalizers = append(next.Finalizers, AttachedFinalizer)
		if _, err := a.objects.Update(ctx, next); err != nil {
			return err
		}
	}
	attached, err := plugin.AttachSpec(ctx, spec, types.NodeName(object.Spec.NodeName))
	if err != nil {
		return a.fail(ctx, object, err)
	}
	next := object.DeepCopy()
	next.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: maps.Clone(attached.Metadata)}
	if attached.DevicePath != "" {
		next.Status.AttachmentMetadata = pvapi.With(next.Status.AttachmentMetadata, DevicePathKey, attached.DevicePath)
	}
	return a.write(ctx, a.objects.UpdateStatus, next)
}

func (a *Attacher) detach(ctx context.Context, object *storagev1.VolumeAttachment, plugin volume.SpecAttacher, spec *volume.Spec) error {
	if err := plugin.DetachSpec(ctx, spec, types.NodeName(object.Spec.NodeName)); err != nil {
		return a.fail(ctx, object, err)
	}
	next := object.DeepCopy()
	next.Finalizers = pvapi.Without(next.Finalizers, AttachedFinalizer)
	return a.write(ctx, a.objects.Update, next)
}

// fail writes why an attempt has failed, and returns it. The same is not written twice.
func (a *Attacher) fail(ctx context.Context, object *storagev1.VolumeAttachment, why error) error {
	next := object.DeepCopy()
	trouble := &next.Status.AttachError
	if object.DeletionTimestamp != nil {
		trouble = &next.Status.DetachError
	}
	told := pvapi.AttachmentError(why, time.Now())
	if *trouble != nil && (*trouble).Message == told.Message {
		return why
	}
	*trouble = told
	return errors.Join(why, a.write(ctx, a.objects.UpdateStatus, next))
}

// write writes an attachment and notes the stored version.
func (a *Attacher) write(ctx context.Context, f func(context.Context, metav1.Object) (metav1.Object, error), next *storagev1.VolumeAttachment) error {
	stored, err := f(ctx, next)
	if err != nil {
		return a.attachments.Failed(ctx, next, err)
	}
	object, ok := stored.(*storagev1.VolumeAttachment)
	switch {
	case !ok:
		return fmt.Errorf("the store answered with a %T", stored)
	case pvapi.IsGone(object):
		a.attachments.Gone(object)
	default:
		a.attachments.Wrote(object)
	}
	return nil
}
