package objectstest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

func secret(name string) *v1.Secret {
	return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: name}}
}

func ref(name string) volume.ObjectRef { return volume.NewObjectRef("Secret", "ops", name) }

func TestTheCacheLagsAndLiveDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := objects.NewStore()
		if _, err := store.Create(t.Context(), secret("before")); err != nil {
			t.Fatal(err)
		}
		c := objectstest.NewClient(store)
		defer c.Close()
		var told []volume.ObjectRef
		stop := c.WatchKind("Secret", func(r volume.ObjectRef) {
			if _, err := c.Get(context.Background(), r); err != nil {
				t.Errorf("told of %s, which the cache does not have: %v", r, err)
			}
			told = append(told, r)
		})
		defer stop()
		release := c.Hold("Secret")
		if _, err := c.Create(t.Context(), secret("after")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := c.Get(t.Context(), ref("after")); !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("the cache should not know it yet: %v", err)
		}
		if _, err := objects.Live(c).Get(t.Context(), ref("after")); err != nil {
			t.Errorf("the API should: %v", err)
		}
		if list, err := c.List(t.Context(), "Secret", "ops"); err != nil || len(list) != 1 || list[0].GetName() != "before" {
			t.Errorf("the cache has %v, %v; want what there was at first", list, err)
		}
		if list, err := objects.Live(c).List(t.Context(), "Secret", ""); err != nil || len(list) != 2 {
			t.Errorf("the API has %v, %v", list, err)
		}
		release()
		synctest.Wait()
		if _, err := c.Get(t.Context(), ref("after")); err != nil || len(told) != 1 || told[0] != ref("after") {
			t.Errorf("after the hold: %v, told of %v", err, told)
		}
	})
}

func TestACrashEndsTheProcess(t *testing.T) {
	for _, after := range []bool{false, true} {
		store := objects.NewStore()
		c := objectstest.NewClient(store)
		defer c.Close()
		crashed := c.CrashAt(2, after)
		_, first := c.Create(t.Context(), secret("first"))
		_, second := c.Create(t.Context(), secret("second"))
		_, third := c.Create(t.Context(), secret("third"))
		if first != nil || !errors.Is(second, objectstest.ErrCrashed) || !errors.Is(third, objectstest.ErrCrashed) {
			t.Errorf("errors %v, %v, %v", first, second, third)
		}
		select {
		case <-crashed:
		default:
			t.Error("nobody was told of the crash")
		}
		if _, err := objects.Live(c).Get(t.Context(), ref("first")); !errors.Is(err, objectstest.ErrCrashed) {
			t.Errorf("a dead process reads: %v", err)
		}
		if _, err := store.Get(t.Context(), ref("second")); (err == nil) != after {
			t.Errorf("after = %v: %v", after, err)
		}
		if _, err := store.Get(t.Context(), ref("third")); !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("a dead process wrote: %v", err)
		}
	}
}

func TestFaultsHitCalls(t *testing.T) {
	store := objects.NewStore()
	c := objectstest.NewClient(store)
	defer c.Close()
	broken := errors.New("broken")
	c.Inject(fault.Fault[objectstest.Call]{Match: func(call objectstest.Call) bool { return call.Verb == "delete" && call.Ref == ref("a") }, After: true, Err: broken})
	if _, err := c.Create(t.Context(), secret("a")); err != nil {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), ref("a"), objects.Preconditions{}); !errors.Is(err, broken) {
		t.Errorf("err = %v", err)
	}
	if _, err := store.Get(t.Context(), ref("a")); !errors.Is(err, volume.ErrNotFound) || c.Count() != 2 {
		t.Errorf("it should be deleted although the call failed: %v after %d calls", err, c.Count())
	}
}

func TestAStoreIsItsOwnLiveReader(t *testing.T) {
	store := objects.NewStore()
	if objects.Live(store) != objects.Reader(store) {
		t.Error("a store is never behind, so it is its own")
	}
}
