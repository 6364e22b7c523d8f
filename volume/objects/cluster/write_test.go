package cluster_test

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
)

// The kinds that have a status in a store have one in a cluster.
func TestKindsHaveTheirStatus(t *testing.T) {
	inWorld(t, cluster.Config{Shared: []string{}}, func(t *testing.T, w *world) {
		for _, kind := range objects.Kinds() {
			object := kind.New()
			object.SetName("absent")
			if kind.Namespaced {
				object.SetNamespace("ops")
			}
			_, stored := objects.NewStore().UpdateStatus(t.Context(), object)
			_, err := w.UpdateStatus(t.Context(), object)
			_, without := errors.AsType[*volume.InvalidSpecError](stored)
			if _, is := errors.AsType[*volume.InvalidSpecError](err); is != without || err == nil {
				t.Errorf("%s: %v in a cluster, %v in a store", kind.Kind, err, stored)
			}
		}
	})
}

// Writers only read what they are given, also while they send it: it may be what an
// informer has for everybody. The race detector sees it if not.
func TestWritersOnlyReadTheirArguments(t *testing.T) {
	inWorld(t, cluster.Config{Shared: []string{}}, func(t *testing.T, w *world) {
		w.create(configMap("app"))
		given := configMap("app")
		done := make(chan error)
		for _, write := range []func(context.Context, metav1.Object) (metav1.Object, error){w.Update, w.Update, w.Create} {
			go func() {
				_, err := write(t.Context(), given)
				done <- err
			}()
		}
		failures := 0
		for range 3 {
			if <-done != nil {
				failures++
			}
		}
		if failures != 1 { // it exists already
			t.Errorf("%d writes failed", failures)
		}
		if given.Kind != "" {
			t.Errorf("the argument has become a %s", given.Kind)
		}
	})
}
