package nodeevents

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

func podNamed(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}}
}

func claimNamed(name string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}}
}

// lines are the events as a person would list them, without times.
func lines(events []Event) string {
	var all []string
	for _, e := range events {
		all = append(all, fmt.Sprintf("%s %s/%s %s %s ×%d: %s", e.Kind, e.Namespace, e.Name, e.Type, e.Reason, e.Count, e.Message))
	}
	return strings.Join(all, "\n")
}

func check(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

// passed is the next listener of a ring.
type passed struct{ got []string }

func (p *passed) Event(pod *v1.Pod, _, reason, _ string) {
	p.got = append(p.got, pod.Name+" "+reason)
}

type passedStorage struct{ *passed }

func (p passedStorage) Event(object runtime.Object, _, reason, _ string) {
	p.got = append(p.got, object.(metav1.Object).GetName()+" "+reason)
}

func TestRingKeepsEventsAndPassesThemOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := 0
		r := &Ring{Changed: func() { told++ }}
		check(t, "empty", fmt.Sprint(r.All()), "[]")
		next := &passed{}
		pods, storage := r.Pods(next), r.Storage(passedStorage{next})
		var _ volume.EventSink = pods
		pods.Event(podNamed("a"), v1.EventTypeWarning, "FailedMount", "no server")
		time.Sleep(time.Second)
		storage.Event(claimNamed("data"), v1.EventTypeNormal, "WaitForFirstConsumer", "waits for a pod")
		time.Sleep(time.Second)
		pods.Event(podNamed("a"), v1.EventTypeWarning, "FailedMount", "no server")
		check(t, "events", lines(r.All()), `PersistentVolumeClaim shop/data Normal WaitForFirstConsumer ×1: waits for a pod
Pod shop/a Warning FailedMount ×2: no server`)
		e := r.All()[1]
		if e.Last.Sub(e.First) != 2*time.Second || e.UID != "uid-a" || !e.IsWarning() {
			t.Errorf("%+v", e)
		}
		check(t, "passed on", strings.Join(next.got, ", "), "a FailedMount, data WaitForFirstConsumer, a FailedMount")
		if told != 3 {
			t.Errorf("told %d times", told)
		}
		r.Pods(nil).Event(podNamed("b"), v1.EventTypeNormal, "X", "")
		r.Storage(nil).Event(&v1.PersistentVolume{}, v1.EventTypeNormal, "X", "")
	})
}

// One object drives out its own events only, one kind those of its kind only, and a ring has at
// most so many events and so many bytes.
func TestRingIsBounded(t *testing.T) {
	r := &Ring{}
	pods, storage := r.Pods(nil), r.Storage(nil)
	storage.Event(claimNamed("data"), v1.EventTypeWarning, "ProvisioningFailed", "full")
	pods.Event(podNamed("quiet"), v1.EventTypeWarning, "FailedMount", "once")
	for i := range 1000 {
		pods.Event(podNamed("loud"), v1.EventTypeWarning, "FailedMount", fmt.Sprint("try ", i))
	}
	all := r.All()
	if len(all) != perObject+2 || all[len(all)-1].Message != "try 999" {
		t.Fatalf("%d events:\n%s", len(all), lines(all))
	}
	for i := range 2 * maxEvents {
		pods.Event(podNamed(fmt.Sprint("pod-", i)), v1.EventTypeWarning, "FailedMount", "no server")
	}
	all = r.All()
	if len(all) != maxEvents+1 || all[0].Name != "data" || all[len(all)-1].Name != fmt.Sprint("pod-", 2*maxEvents-1) {
		t.Fatalf("%d events:\n%s", len(all), lines(all))
	}
	endless := strings.Repeat("é", 1<<20)
	for i := range 2 * maxEvents {
		pods.Event(podNamed(fmt.Sprint("pod-", i)), v1.EventTypeWarning, "FailedMount", endless)
	}
	bytes := 0
	for _, e := range r.All() {
		if bytes += e.bytes(); !utf8.ValidString(e.Message) {
			t.Fatalf("half a character ends %q", e.Message)
		}
	}
	if k := r.kinds["Pod"]; bytes > maxBytes+100 || k.bytes > maxBytes || len(k.of) != k.events.Len() {
		t.Errorf("%d bytes; %d counted; %d objects of %d events", bytes, k.bytes, len(k.of), k.events.Len())
	}
}

func TestRingFollowsPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, r := objects.NewStore(), &Ring{}
		old := volumeNamed("old", v1.VolumeBound)
		mustCreate(t, store, old)
		time.Sleep(time.Hour)
		defer r.Follow(store)()
		mustUpdate(t, store, old, func(pv *v1.PersistentVolume) { pv.Labels = map[string]string{"changed": "yes"} })
		pv := volumeNamed("pv", v1.VolumeBound)
		mustCreate(t, store, claimNamed("pv"))
		mustCreate(t, store, pv)
		bound := `PersistentVolume /pv Normal Bound ×1: it is bound to claim shop/pv
PersistentVolumeClaim shop/pv Normal Bound ×1: it is bound to volume pv`
		synctest.Wait()
		check(t, "bound", lines(r.All()), bound)
		time.Sleep(time.Second)
		mustUpdate(t, store, pv, func(pv *v1.PersistentVolume) { pv.Labels = map[string]string{"changed": "yes"} })
		synctest.Wait()
		check(t, "bound, and changed", lines(r.All()), bound)
		time.Sleep(time.Second)
		if err := store.Delete(t.Context(), volume.NewObjectRef(kindClaim, "shop", "pv"), objects.Preconditions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(time.Second)
		mustUpdate(t, store, pv, func(pv *v1.PersistentVolume) {
			pv.Status.Phase, pv.Status.LastPhaseTransitionTime = v1.VolumeReleased, new(metav1.Now())
		})
		synctest.Wait()
		check(t, "released", lines(r.All()), bound+`
PersistentVolumeClaim shop/pv Normal Deleted ×1: it is deleted
PersistentVolume /pv Normal Released ×1: its claim shop/pv is gone; its reclaim policy is Retain`)
	})
}

// Several news of one deletion are one event, and another object of the name has its own.
func TestADeletionIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, ref := &Ring{}, volume.NewObjectRef(kindClaim, "shop", "data")
		r.deleted(ref)
		r.deleted(volume.NewObjectRef(kindClaim, "lab", "data"))
		time.Sleep(time.Second)
		r.deleted(ref)
		r.Storage(nil).Event(claimNamed("data"), v1.EventTypeNormal, "Provisioning", "again")
		time.Sleep(time.Second)
		r.deleted(ref)
		check(t, "deleted", lines(r.All()), `PersistentVolumeClaim lab/data Normal Deleted ×1: it is deleted
PersistentVolumeClaim shop/data Normal Deleted ×1: it is deleted
PersistentVolumeClaim shop/data Normal Provisioning ×1: again
PersistentVolumeClaim shop/data Normal Deleted ×1: it is deleted`)
	})
}

// A phase that was evicted does not come back by another change of its volume.
func TestRingDoesNotFollowOldPhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, r := objects.NewStore(), &Ring{}
		defer r.Follow(store)()
		pv := volumeNamed("pv", v1.VolumeBound)
		mustCreate(t, store, pv)
		synctest.Wait()
		for _, others := range []struct {
			objects, each int
			claim         string
		}{{1, perObject, "pv"}, {maxEvents, 1, "claim"}} {
			for i := range others.objects {
				for j := range others.each {
					time.Sleep(time.Second)
					name := others.claim
					if others.objects > 1 {
						name += fmt.Sprint(i)
					}
					r.Storage(nil).Event(claimNamed(name), v1.EventTypeNormal, "X", fmt.Sprint(j))
				}
			}
			mustUpdate(t, store, pv, func(pv *v1.PersistentVolume) { pv.Labels = map[string]string{"changed": others.claim} })
			synctest.Wait()
			for _, e := range r.All() {
				if e.Kind == kindClaim && e.Reason == ReasonBound {
					t.Errorf("%s is back, after %+v", lines([]Event{e}), others)
				}
			}
		}
	})
}

func volumeNamed(name string, phase v1.PersistentVolumePhase) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}
	pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
	pv.Status = v1.PersistentVolumeStatus{Phase: phase, LastPhaseTransitionTime: new(metav1.Now())}
	return pv
}

func mustCreate(t *testing.T, store *objects.Store, object metav1.Object) {
	t.Helper()
	if _, err := store.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// mustUpdate changes a volume, and its status.
func mustUpdate(t *testing.T, store *objects.Store, pv *v1.PersistentVolume, change func(*v1.PersistentVolume)) {
	t.Helper()
	change(pv)
	if _, err := store.Update(t.Context(), pv); err != nil {
		t.Fatal(err)
	}
	if _, err := store.UpdateStatus(t.Context(), pv); err != nil {
		t.Fatal(err)
	}
}
