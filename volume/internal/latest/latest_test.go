package latest

import (
	"errors"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// An answer that an object does not exist may be older than the object.
func TestAnAnswerThatIsOvertakenForgetsNothing(t *testing.T) {
	store := objects.NewStore()
	client := objectstest.NewClient(store)
	defer client.Close()
	var times int
	l := New(client, pvapi.KindVolume, func(_ types.NamespacedName, _, _ *v1.PersistentVolume, how Noticed) {
		if how == Gone {
			times++
		}
	})
	client.Inject(fault.Fault[objectstest.Call]{Nth: 1, After: true, Hook: func() {
		stored, err := store.Create(t.Context(), &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}})
		if err != nil {
			t.Fatal(err)
		}
		l.Put(stored.(*v1.PersistentVolume))
	}})
	pv, exists, err := l.GetLive(t.Context(), types.NamespacedName{Name: "pv"})
	if err != nil || !exists || pv.Name != "pv" || times != 0 {
		t.Errorf("got %v, %v, %v, and it was called gone %d times", pv, exists, err, times)
	}
	if err := store.Delete(t.Context(), pvapi.VolumeRef("pv"), objects.Preconditions{}); err != nil {
		t.Fatal(err)
	}
	if _, exists, err := l.GetLive(t.Context(), types.NamespacedName{Name: "pv"}); err != nil || exists || times != 1 {
		t.Errorf("after its deletion: %v, %v, gone %d times", exists, err, times)
	}
}

// After a conflict the next try is based on what there is now: the API is asked
// only if the cache has not heard of it.
func TestAConflictTellsThatMoreIsToBeKnown(t *testing.T) {
	for name, behind := range map[string]bool{"the cache is behind": true, "the cache has it": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := objects.NewStore()
				first, err := store.Create(t.Context(), &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}})
				if err != nil {
					t.Fatal(err)
				}
				client := objectstest.NewClient(store)
				defer client.Close()
				l := New(client, pvapi.KindVolume, func(types.NamespacedName, *v1.PersistentVolume, *v1.PersistentVolume, Noticed) {})
				known, _, err := l.Get(t.Context(), types.NamespacedName{Name: "pv"})
				if err != nil {
					t.Fatal(err)
				}
				asked := 0
				if behind {
					defer client.Hold(pvapi.KindVolume)()
					asked = 1
				}
				changed := first.(*v1.PersistentVolume).DeepCopy()
				changed.Labels = map[string]string{"changed": "by others"}
				if _, err := store.Update(t.Context(), changed); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				next := known.DeepCopy()
				next.Labels = map[string]string{"changed": "by us"}
				_, err = client.Update(t.Context(), next)
				if !errors.Is(err, objects.ErrConflict) || l.Failed(t.Context(), next, err) != err {
					t.Fatalf("err = %v, want a conflict", err)
				}
				if now, _ := l.Last(types.NamespacedName{Name: "pv"}); now.Labels["changed"] != "by others" || client.Count() != 1+asked {
					t.Errorf("known is %v after %d calls", now.ObjectMeta, client.Count())
				}
			})
		})
	}
}

// What was made anew is there, though the cache still has the one before.
func TestWhatIsMadeAnewIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, name := objects.NewStore(), types.NamespacedName{Name: "pv"}
		create := func() metav1.Object {
			made, err := store.Create(t.Context(), &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}})
			if err != nil {
				t.Fatal(err)
			}
			return made
		}
		first := create()
		client := objectstest.NewClient(store)
		defer client.Close()
		l := New(client, pvapi.KindVolume, func(types.NamespacedName, *v1.PersistentVolume, *v1.PersistentVolume, Noticed) {})
		if _, exists, err := l.Get(t.Context(), name); err != nil || !exists {
			t.Fatalf("exists %v, %v", exists, err)
		}
		defer client.Hold(pvapi.KindVolume)()
		if err := store.Delete(t.Context(), pvapi.VolumeRef("pv"), objects.Preconditions{UID: first.GetUID()}); err != nil {
			t.Fatal(err)
		}
		if _, exists, err := l.GetLive(t.Context(), name); err != nil || exists {
			t.Fatalf("exists %v, %v", exists, err)
		}
		made := create()
		l.Put(made.(*v1.PersistentVolume))
		if now, exists, err := l.Get(t.Context(), name); err != nil || !exists || now.UID != made.GetUID() {
			t.Errorf("exists %v, %v", exists, err)
		}
	})
}
