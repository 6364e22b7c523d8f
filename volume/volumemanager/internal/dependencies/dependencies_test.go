package dependencies_test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager/internal/dependencies"
)

// source has no objects, and one watcher of each at most.
type source map[volume.ObjectRef]func(volume.ObjectRef)

func (source) Get(context.Context, volume.ObjectRef) (metav1.Object, error) {
	return nil, volume.ErrNotFound
}

func (s source) Watch(ref volume.ObjectRef, f func(volume.ObjectRef)) (stop func()) {
	if s[ref] != nil {
		panic("a second watch of " + ref.Name)
	}
	s[ref] = f
	return func() { delete(s, ref) }
}

func (s source) change(name string) {
	ref := volume.NewObjectRef("ConfigMap", "default", name)
	if f := s[ref]; f != nil {
		f(ref)
	}
}

// A volume hears of the objects that its last set-up asked for, once for each, and of no others.
func TestSet(t *testing.T) {
	source := make(source)
	ref := func(name string) volume.ObjectRef { return volume.NewObjectRef("ConfigMap", "default", name) }
	var set dependencies.Set
	changes := 0
	setUp := func(names ...string) {
		f := dependencies.Finder{Set: &set, Objects: source, Changed: func() { changes++ }}
		defer f.StopUnused()
		for _, name := range names {
			_, _ = f.Get(t.Context(), ref(name)) // which may be missing, and is watched nevertheless
		}
	}
	expect := func(want int, when string) {
		t.Helper()
		if changes != want {
			t.Errorf("%s: %d changes, want %d", when, changes, want)
		}
		changes = 0
	}
	if !set.IsEmpty() {
		t.Error("a new set watches something")
	}
	setUp("a", "b", "a")
	source.change("a")
	source.change("b")
	source.change("c")
	expect(2, "with a and b")
	setUp("b")
	source.change("a")
	source.change("b")
	expect(1, "with b")
	taken := set.Take()
	if !set.IsEmpty() || taken.IsEmpty() {
		t.Error("a set that was taken from watches still, or nothing was taken")
	}
	source.change("b")
	expect(1, "with a watch that is about to be stopped")
	taken.Stop()
	source.change("b")
	expect(0, "at the end")
}
