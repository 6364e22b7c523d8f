package attachdetach_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/attachdetach"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// external is a driver's external-attacher: it works on an attachment a second after each change.
type external struct {
	t     *testing.T
	store *objects.Store
	// fails: attempts fail; hangs: there are none.
	fails, hangs bool
}

func (e *external) run(ctx context.Context) {
	changed := make(chan volume.ObjectRef, 100)
	defer e.store.WatchKind(pvapi.KindAttachment, func(ref volume.ObjectRef) { changed <- ref })()
	for {
		select {
		case ref := <-changed:
			time.Sleep(time.Second)
			if !e.hangs {
				e.work(ctx, ref)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (e *external) work(ctx context.Context, ref volume.ObjectRef) {
	a, err := objects.Get[*storagev1.VolumeAttachment](ctx, e.store, ref)
	if err != nil || a.DeletionTimestamp == nil && (a.Status.Attached || a.Status.AttachError != nil) {
		return
	}
	next := a.DeepCopy()
	switch {
	case a.DeletionTimestamp != nil:
		next.Finalizers = nil
		_, err = e.store.Update(ctx, next)
	case len(a.Finalizers) == 0:
		next.Finalizers = []string{"external-attacher/disks"}
		_, err = e.store.Update(ctx, next)
	case e.fails:
		next.Status.AttachError = &storagev1.VolumeError{Message: "no slot is free"}
		_, err = e.store.UpdateStatus(ctx, next)
	default:
		next.Status = storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: map[string]string{"slot": "3"}}
		_, err = e.store.UpdateStatus(ctx, next)
	}
	if err != nil && ctx.Err() == nil {
		e.t.Error(err)
	}
}

// byObject runs f with a driver's volume and an external-attacher.
func byObject(t *testing.T, e *external, f func(by attachdetach.ByObject, spec *volume.Spec)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e.t, e.store = t, objects.NewStore()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); e.run(ctx) }()
		synctest.Wait() // until it watches
		pv := pvbuild.NewPV("disk", "1Gi")
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "disks", VolumeHandle: "h"}}
		f(attachdetach.ByObject{Objects: e.store}, volume.NewSpecFromPersistentVolume(pv, false))
		cancel()
		<-ended
	})
}

func (e *external) attachments() int {
	all, err := objects.List[*storagev1.VolumeAttachment](e.t.Context(), e.store, pvapi.KindAttachment, "")
	if err != nil {
		e.t.Error(err)
	}
	return len(all)
}

// An agent makes the VolumeAttachment and waits for the driver's external-attacher, also if it is
// there already; and so it detaches.
func TestAttachByObject(t *testing.T) {
	e := &external{}
	byObject(t, e, func(by attachdetach.ByObject, spec *volume.Spec) {
		for range 2 {
			got, err := by.AttachSpec(e.t.Context(), spec, "n0")
			if err != nil || got.Metadata["slot"] != "3" || e.attachments() != 1 {
				e.t.Errorf("%+v, %v, %d attachments", got, err, e.attachments())
			}
		}
		name := pvapi.CSIAttachmentName("h", "disks", "n0")
		a, err := objects.Get[*storagev1.VolumeAttachment](e.t.Context(), e.store, attachmentNamed(name))
		if err != nil || a.Spec.Attacher != "disks" || a.Spec.NodeName != "n0" || *a.Spec.Source.PersistentVolumeName != "disk" {
			e.t.Errorf("%+v, %v", a, err)
		}
		for range 2 {
			if err := by.DetachSpec(e.t.Context(), spec, "n0"); err != nil || e.attachments() != 0 {
				e.t.Errorf("%v, %d attachments", err, e.attachments())
			}
		}
	})
}

// A volume that another node has is refused until that node's VolumeAttachment is gone, unless
// several nodes may have it.
func TestAttachByObjectLetsOneNodeHaveIt(t *testing.T) {
	e := &external{}
	byObject(t, e, func(by attachdetach.ByObject, spec *volume.Spec) {
		spec.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
		if _, err := by.AttachSpec(e.t.Context(), spec, "n0"); err != nil {
			e.t.Fatal(err)
		}
		renamed := volume.NewSpecFromPersistentVolume(spec.PersistentVolume.DeepCopy(), false)
		renamed.PersistentVolume.Name = "again"
		for _, same := range []*volume.Spec{spec, renamed} {
			if _, err := by.AttachSpec(e.t.Context(), same, "n1"); err == nil || !strings.Contains(err.Error(), "gives it to node n0") || volume.IsUncertain(err) {
				e.t.Errorf("%v", err)
			}
		}
		if e.attachments() != 1 {
			e.t.Errorf("%d attachments", e.attachments())
		}
		renamed.PersistentVolume.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
		if _, err := by.AttachSpec(e.t.Context(), renamed, "n1"); err != nil {
			e.t.Error(err)
		}
		if err := by.DetachSpec(e.t.Context(), spec, "n1"); err != nil {
			e.t.Error(err)
		}
		if err := by.DetachSpec(e.t.Context(), spec, "n0"); err != nil {
			e.t.Error(err)
		}
		if _, err := by.AttachSpec(e.t.Context(), spec, "n1"); err != nil {
			e.t.Error(err)
		}
	})
}

// The external-attacher's error is told, and one that does not answer is not waited for for ever.
// Neither says that nothing is attached.
func TestAttachByObjectFails(t *testing.T) {
	for name, e := range map[string]*external{"no slot is free": {fails: true}, "has not answered within 2m0s": {hangs: true}} {
		t.Run(name, func(t *testing.T) {
			byObject(t, e, func(by attachdetach.ByObject, spec *volume.Spec) {
				began := time.Now()
				if _, err := by.AttachSpec(e.t.Context(), spec, "n0"); err == nil || !strings.Contains(err.Error(), name) || !volume.IsUncertain(err) {
					e.t.Errorf("%v", err)
				}
				if took := time.Since(began); took > 2*time.Minute {
					e.t.Errorf("it took %s", took)
				}
			})
		})
	}
}

// A volume of no driver is refused, and nothing is done.
func TestAttachByObjectRefuses(t *testing.T) {
	by := attachdetach.ByObject{Objects: objects.NewStore()}
	var invalid *volume.InvalidSpecError
	spec := volume.NewSpecFromPersistentVolume(pvbuild.NewPV("disk", "1Gi"), false)
	if _, err := by.AttachSpec(t.Context(), spec, "n0"); !errors.As(err, &invalid) || volume.IsUncertain(err) {
		t.Errorf("%v", err)
	}
	if err := by.DetachSpec(t.Context(), spec, "n0"); !errors.As(err, &invalid) {
		t.Errorf("%v", err)
	}
}
