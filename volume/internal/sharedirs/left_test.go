package sharedirs

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// Wherever a deletion has died: a path counts as left only once nothing of the
// volume is there, also when a later volume has it, and what was begun is ended
// without that one.
func TestAPathIsLeftOnceNothingOfItsVolumeIsThere(t *testing.T) {
	for _, how := range []OnDelete{Delete, Archive, Retain} {
		t.Run(string(how), func(t *testing.T) {
			prepare := func(b *base) {
				w := wish("ns/data", "pv1")
				w.OnDelete = how
				mustMake(t, b, w)
				write(t, b.path("ns/data/old"), "x")
				if left, err := b.hasLeft(context.Background(), "ns/data", owner("pv1")); left || err != nil {
					t.Errorf("before its deletion: %v, %v", left, err)
				}
			}
			remove := func(b *base) error { return b.remove(context.Background(), "ns/data", owner("pv1"), Delete) }
			taken := 0
			crashes(t, prepare, remove, func(b *base) {
				before := strings.Contains(tree(t, b.root.Name()), "ns/data/old")
				left, err := b.hasLeft(context.Background(), "ns/data", owner("pv1"))
				if left && before && how != Retain || err != nil {
					t.Errorf("left: %v, %v, there is\n%s", left, err, tree(t, b.root.Name()))
				}
				if err := b.make(context.Background(), wish("ns/data", "pv2")); err != nil {
					if !errors.Is(err, ErrOccupied) {
						t.Error(err)
					}
					return
				}
				taken++
				write(t, b.path("ns/data/new"), "x")
				for name, want := range map[string]bool{"pv1": true, "pv2": false} {
					if left, err := b.hasLeft(context.Background(), "ns/data", owner(name)); left != want || err != nil {
						t.Errorf("%s, once pv2 has the path: %v, %v", name, left, err)
					}
				}
				if err := remove(b); err != nil {
					t.Error(err)
				}
				if got := tree(t, b.root.Name()); !strings.Contains(got, "ns/data/new") {
					t.Errorf("there is\n%s", got)
				}
			})
			if taken == 0 && how != Retain {
				t.Error("pv2 never got the path")
			}
		})
	}
}

// Without a bookkeeping nobody knows whose a path is.
func TestAPathOfAnotherDiskIsNotLeft(t *testing.T) {
	b := openBase(t)
	if left, err := b.hasLeft(context.Background(), "data", owner("pv1")); left || err != nil {
		t.Errorf("%v, %v", left, err)
	}
}
