package index

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
		if all := slices.Collect(got.from(SizeOf(resource.MustParse("-1")))); !slices.Equal(all, want) || got.count != len(want) {
			t.Fatalf("got %v of %d, want %v", all, got.count, want)
		}
		for _, run := range got.runs {
			if len(run) == 0 || len(run) > longestRun {
				t.Fatalf("%d volumes in %d runs, of which one has %d", len(want), len(got.runs), len(run))
			}
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
			if n := got.smaller(SizeOf(bound)); n != below {
				t.Fatalf("%d are smaller than %s, want %d", n, text, below)
			}
			if rest := slices.Collect(got.from(SizeOf(bound))); !slices.Equal(rest, want[below:]) {
				t.Fatalf("from %s: %v, want %v", text, rest, want[below:])
			}
		}
	})
}

func TestOrderedJoinsWhatIsLeft(t *testing.T) {
	var o ordered
	var all []item
	for i := range 20 * longestRun {
		pv := new(v1.PersistentVolume)
		pv.Name = fmt.Sprintf("pv%06d", i)
		all = append(all, itemOf(pv))
		o.insert(all[i])
	}
	for i, it := range all {
		if i%longestRun != 0 {
			o.remove(it)
		}
	}
	if o.count != 20 || len(o.runs) > 10 {
		t.Errorf("%d volumes are left in %d runs", o.count, len(o.runs))
	}
}

// A volume on any number of nodes, with any number of labels, is in few lists.
func TestPostingsAreFew(t *testing.T) {
	for _, count := range []int{1, 5, 20, 60, 70, 1000} {
		pv := new(v1.PersistentVolume)
		pv.Labels = make(map[string]string)
		host := v1.NodeSelectorRequirement{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn}
		for i := range count {
			pv.Labels[fmt.Sprintf("l%d", i)] = "x"
			host.Values = append(host.Values, fmt.Sprintf("n%d", i))
		}
		term := v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{host}}
		pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{term}}}
		if n := len(postings(pv)); n > 2*maxPostings {
			t.Errorf("%d labels and hosts: %d lists", count, n)
		}
	}
}
