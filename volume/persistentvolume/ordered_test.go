package persistentvolume

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
)

// An order in runs is a sorted list, whatever goes in and out.
func TestOrderedIsASortedList(t *testing.T) {
	// Among them are sizes that are no whole number, and beyond 64 bits.
	sizes := []string{"-1", "0", "500m", "1", "1500m", "2", "1Gi", "1073741824", "8Ei", "9223372036854775807", "1e20", "1e21"}
	rapid.Check(t, func(t *rapid.T) {
		var got ordered
		var want []item
		named := make(map[string]item)
		for range rapid.IntRange(1, 600).Draw(t, "steps") {
			name := fmt.Sprintf("pv%d", rapid.IntRange(0, 400).Draw(t, "name"))
			if e, ok := named[name]; ok {
				got.remove(e)
				got.remove(e) // what is not there
				want = slices.DeleteFunc(want, func(w item) bool { return w.pv.Name == name })
				delete(named, name)
				continue
			}
			pv := new(v1.PersistentVolume)
			pv.Name = name
			pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(rapid.SampledFrom(sizes).Draw(t, "size"))}
			named[name] = itemOf(pv)
			got.insert(named[name])
			want = append(want, named[name])
		}
		slices.SortFunc(want, func(a, b item) int {
			sizeA, sizeB := a.pv.Spec.Capacity[v1.ResourceStorage], b.pv.Spec.Capacity[v1.ResourceStorage]
			if c := sizeA.Cmp(sizeB); c != 0 {
				return c
			}
			return slices.Compare([]byte(a.pv.Name), []byte(b.pv.Name))
		})
		if all := slices.Collect(got.from(sizeOf(resource.MustParse("-1")))); !slices.Equal(all, want) || got.count != len(want) {
			t.Fatalf("got %v of %d, want %v", all, got.count, want)
		}
		for _, text := range sizes {
			bound := resource.MustParse(text)
			below := slices.IndexFunc(want, func(e item) bool {
				q := e.pv.Spec.Capacity[v1.ResourceStorage]
				return q.Cmp(bound) >= 0
			})
			if below < 0 {
				below = len(want)
			}
			if n := got.smaller(sizeOf(bound)); n != below {
				t.Fatalf("%d are smaller than %s, want %d", n, text, below)
			}
			if rest := slices.Collect(got.from(sizeOf(bound))); !slices.Equal(rest, want[below:]) {
				t.Fatalf("from %s: %v, want %v", text, rest, want[below:])
			}
		}
	})
}
