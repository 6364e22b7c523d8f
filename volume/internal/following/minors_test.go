package following

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/podvol/podvol/util/kubeapi"
)

// What a minor of client-go has only under a name is found under it, or done
// without.
func TestTrustBundleClients(t *testing.T) {
	object := kubeapi.NewTrustBundle()
	object.SetName("one")
	c := TrustBundles(fake.NewClientset())
	made, err := c.Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil || made.GetName() != "one" {
		t.Fatalf("create: %v, %v", made, err)
	}
	w, err := c.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	if _, err := c.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	got, err := c.Get(t.Context(), "one", metav1.GetOptions{})
	if _, ok := kubeapi.TrustBundleOf(got); err != nil || !ok {
		t.Errorf("get: a %T, %v", got, err)
	}
	if list, err := c.List(t.Context(), metav1.ListOptions{}); err != nil || list == nil {
		t.Errorf("list: %v, %v", list, err)
	}
	if err := c.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if err := c.Delete(t.Context(), "one", metav1.DeleteOptions{}); err == nil {
		t.Error("what is not there is deleted")
	}
}

// An informer that does not tell when it has synced is asked until it has, or until
// nobody wants to know any more.
func TestSyncedIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var synced atomic.Bool
		closed := make(chan struct{})
		done := polled(synced.Load, closed)
		time.Sleep(time.Hour)
		select {
		case <-done:
			t.Error("synced too early")
		default:
		}
		synced.Store(true)
		<-done
		never := polled(func() bool { return false }, closed)
		close(closed)
		synctest.Wait() // the goroutine ends, or the bubble would not
		select {
		case <-never:
			t.Error("synced because it was closed")
		default:
		}
	})
}

func TestWatchListSemantics(t *testing.T) {
	if (listWatch{client: nil}).IsWatchListSemanticsUnSupported() {
		t.Error("a client that does not say so")
	}
	if !(listWatch{client: semantics(true)}).IsWatchListSemanticsUnSupported() {
		t.Error("a client that says so")
	}
}

type semantics bool

func (s semantics) IsWatchListSemanticsUnSupported() bool { return bool(s) }
