package clusterhost_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/persistentvolume"
)

var _ persistentvolume.EventRecorder = clusterhost.ObjectEvents{}

// recorder keeps what it is given, if it is let.
type recorder struct {
	record.EventRecorder
	held chan struct{} // nil: it does not block

	mu  sync.Mutex
	all []recorded
}

type recorded struct {
	about           v1.ObjectReference
	reason, message string
}

func (r *recorder) Event(object runtime.Object, _, reason, message string) {
	if r.held != nil {
		<-r.held
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, recorded{*object.(*v1.ObjectReference), reason, message})
}

func TestEventsAreAboutWholeObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		e := clusterhost.NewEvents(r)
		e.Event(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "web", UID: "u1", ResourceVersion: "7"}}, v1.EventTypeWarning, "FailedMount", "no")
		about := func(object runtime.Object) { e.Objects().Event(object, v1.EventTypeNormal, "R", "m") }
		about(&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "data", UID: "u2"}})
		about(&v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv1", UID: "u3"}})
		about(&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast", UID: "u4"}})
		about(nil)
		synctest.Wait()
		want := []recorded{
			{v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "ops", Name: "web", UID: "u1", ResourceVersion: "7"}, "FailedMount", "no"},
			{v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "ops", Name: "data", UID: "u2"}, "R", "m"},
			{v1.ObjectReference{Kind: "PersistentVolume", APIVersion: "v1", Name: "pv1", UID: "u3"}, "R", "m"},
			{v1.ObjectReference{Kind: "StorageClass", APIVersion: "storage.k8s.io/v1", Name: "fast", UID: "u4"}, "R", "m"},
		}
		if fmt.Sprint(r.all) != fmt.Sprint(want) || e.Dropped() != 1 {
			t.Errorf("got %v, dropped %d", r.all, e.Dropped())
		}
	})
}

func TestABrokenRecorderBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{held: make(chan struct{})}
		e := clusterhost.NewEvents(r)
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "web", UID: "u1"}}
		began := time.Now()
		for i := range 3000 {
			e.Event(pod, v1.EventTypeNormal, "R", fmt.Sprint(i))
			if i == 0 {
				synctest.Wait() // it hangs with this one
			}
		}
		if time.Since(began) > 0 || e.Dropped() != 1999 {
			t.Errorf("%s, dropped %d", time.Since(began), e.Dropped())
		}
		close(r.held)
		synctest.Wait()
		for i, got := range r.all {
			if got.message != fmt.Sprint(i) {
				t.Fatalf("event %d is %q", i, got.message)
			}
		}
		if len(r.all) != 1001 {
			t.Errorf("%d events were recorded", len(r.all))
		}
	})
}

// With client-go's own recorder, to an API.
func TestEventsReachTheAPI(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		broadcaster := record.NewBroadcaster(record.WithContext(t.Context()))
		broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: w.clientset.CoreV1().Events("")})
		e := clusterhost.NewEvents(broadcaster.NewRecorder(scheme.Scheme, v1.EventSource{Component: "podvol", Host: "node1"}))
		pod := w.projected("web")
		e.Event(pod, v1.EventTypeWarning, "FailedMount", "no such export")
		time.Sleep(time.Second)
		all, err := w.clientset.CoreV1().Events("ops").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(all.Items) != 1 {
			t.Fatalf("%d events, %v", len(all.Items), err)
		}
		if got := all.Items[0]; got.InvolvedObject.Kind != "Pod" || got.InvolvedObject.UID != pod.UID || got.Reason != "FailedMount" {
			t.Errorf("%+v", got)
		}
		broadcaster.Shutdown()
		e.Event(pod, v1.EventTypeWarning, "FailedMount", "after the end") // is dropped
		synctest.Wait()
	})
}
