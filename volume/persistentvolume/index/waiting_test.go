package index

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

func waitingClaimOf(name, request string, change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: name, UID: types.UID(name)}}
	c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	c.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse(request)}
	for _, f := range change {
		f(c)
	}
	return c
}

func freeVolumeOf(name, capacity string, change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	pv.Spec.HostPath = &v1.HostPathVolumeSource{Path: "/data/" + name}
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(capacity)}
	for _, f := range change {
		f(pv)
	}
	return pv
}

// A volume is offered to the very claim that a look at all of them finds, one
// after the other in the order in which they came.
func TestAVolumeIsOfferedToTheFirstClaimThatCanHaveIt(t *testing.T) {
	oneOf := func(t *rapid.T, what string, from ...string) string { return rapid.SampledFrom(from).Draw(t, what) }
	modes := func(t *rapid.T) []v1.PersistentVolumeAccessMode {
		return rapid.SliceOfNDistinct(rapid.SampledFrom([]v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany}), 1, 3, rapid.ID).Draw(t, "modes")
	}
	quantity := func(t *rapid.T) string { return oneOf(t, "size", "1", "1Gi", "1500m", "2Gi", "3Gi", "1Pi", "9Ei") }
	rapid.Check(t, func(t *rapid.T) {
		w := NewWaiting()
		var line []Wanted // in the order in which they came
		leave := func(name string) {
			for i, known := range line {
				if known.Claim.Name == name {
					line = append(line[:i:i], line[i+1:]...)
					return
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			name := fmt.Sprintf("c%d", rapid.IntRange(0, 9).Draw(t, "claim"))
			switch oneOf(t, "do", "claim", "claim", "done", "volume", "volume") {
			case "claim":
				wanted := Wanted{Delayed: rapid.IntRange(0, 5).Draw(t, "delayed") == 0, Claim: waitingClaimOf(name, quantity(t), func(c *v1.PersistentVolumeClaim) {
					c.Spec.AccessModes = modes(t)
					switch oneOf(t, "selector", "", "", "pair", "in", "exists", "not") {
					case "pair":
						c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": oneOf(t, "disk", "ssd", "hdd")}}
					case "in":
						c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "disk", Operator: metav1.LabelSelectorOpIn, Values: []string{"hdd", "ssd"}}}}
					case "exists":
						c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "disk", Operator: metav1.LabelSelectorOpExists}}}
					case "not":
						c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "disk", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"ssd"}}}}
					}
				})}
				if node := oneOf(t, "node", "", "node1"); node != "" {
					wanted.NodeName, wanted.NodeLabels = node, map[string]string{"zone": oneOf(t, "zone", "a", "b")}
				}
				w.Add(wanted)
				known := false
				for i := range line {
					if line[i].Claim.Name == name {
						line[i], known = wanted, true
					}
				}
				if !known {
					line = append(line, wanted)
				}
			case "done":
				w.Done(types.NamespacedName{Namespace: "ops", Name: name})
				leave(name)
			case "volume":
				pv := freeVolumeOf("pv", quantity(t), func(pv *v1.PersistentVolume) {
					pv.Spec.AccessModes = modes(t)
					if disk := oneOf(t, "disk", "", "ssd", "hdd"); disk != "" {
						pv.Labels = map[string]string{"disk": disk}
					}
					if zone := oneOf(t, "zone", "", "a", "b"); zone != "" {
						pv.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
							MatchExpressions: []v1.NodeSelectorRequirement{{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{zone}}},
						}}}}
					}
				})
				want := ""
				for _, wanted := range line {
					q, err := wanted.compile()
					if err != nil {
						t.Fatal(err)
					}
					if !wanted.Delayed && q.reject(pv, "") == nil {
						want = wanted.Claim.Name
						break
					}
				}
				got, ok := w.Pop(pv)
				if got.Name != want || ok != (want != "") {
					t.Fatalf("offered to %q, want %q", got.Name, want)
				}
				w.Done(got)
				leave(want)
			}
		}
		for _, wanted := range line {
			w.Done(pvapi.NameOf(wanted.Claim))
		}
		if len(w.groups)+len(w.claims)+len(w.turns) > 0 {
			t.Fatalf("nobody waits, and this is kept: %v %v %v", w.groups, w.claims, w.turns)
		}
	})
}

// A claim that was woken, looked at again or changed does not lose its turn to
// those that came later.
func TestAClaimThatLooksAgainKeepsItsTurn(t *testing.T) {
	w := NewWaiting()
	first, second := waitingClaimOf("first", "1Gi"), waitingClaimOf("second", "1Gi")
	here := Wanted{Claim: first, NodeName: "node1", NodeLabels: map[string]string{"zone": "a"}}
	w.Add(here)
	w.Add(Wanted{Claim: second})
	again := func(what string) {
		t.Helper()
		if got, _ := w.Pop(freeVolumeOf("pv", "1Gi")); got.Name != "first" {
			t.Errorf("%s: offered to %q", what, got.Name)
		}
	}
	again("at first")
	w.Add(here)
	again("after it was woken and took nothing")
	here.NodeLabels = map[string]string{"zone": "b"}
	w.Add(here)
	again("after its node has changed")
	here.Claim = first.DeepCopy()
	w.Add(here)
	w.Pause(pvapi.NameOf(first))
	w.Add(here)
	again("after it was written and could not take a volume")
	here.Claim = first.DeepCopy()
	here.Claim.UID = "another"
	w.Add(here)
	if got, _ := w.Pop(freeVolumeOf("pv", "1Gi")); got.Name != "second" {
		t.Errorf("after it was made again: offered to %q", got.Name)
	}
}

// offering returns how long it takes to find that nobody waits for a volume, and
// to find who has waited longest for one and have it wait again, with so many that
// wait: the median of some rounds, each with a [Waiting] of its own. The shape of its trees
// is random, and so is how deep in them the claim is.
func offering(t *testing.T, claims, rounds int) (nobody, somebody time.Duration) {
	t.Helper()
	var noOne, one []time.Duration
	for range rounds {
		nobody, somebody = offeringOnce(t, claims)
		noOne, one = append(noOne, nobody), append(one, somebody)
	}
	slices.Sort(noOne)
	slices.Sort(one)
	return noOne[rounds/2], one[rounds/2]
}

func offeringOnce(t *testing.T, claims int) (nobody, somebody time.Duration) {
	t.Helper()
	w := NewWaiting()
	for i := range claims {
		w.Add(Wanted{Claim: waitingClaimOf(fmt.Sprint("c", i), fmt.Sprintf("%dMi", 10_000+claims-i), func(c *v1.PersistentVolumeClaim) {
			switch i % 4 {
			case 1:
				c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
			case 2:
				c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": fmt.Sprint(i)}}
			}
		})})
	}
	first := w.claims[types.NamespacedName{Namespace: "ops", Name: "c0"}].query.Wanted
	small, large := freeVolumeOf("small", "1Gi"), freeVolumeOf("large", "1Ti")
	const volumes = 1000
	fastest := func(best time.Duration, f func()) time.Duration {
		began := time.Now()
		for range volumes {
			f()
		}
		if took := time.Since(began) / volumes; best == 0 || took < best {
			return took
		}
		return best
	}
	for range 3 {
		nobody = fastest(nobody, func() {
			if claim, ok := w.Pop(small); ok {
				t.Fatalf("%v cannot have it", claim)
			}
		})
		somebody = fastest(somebody, func() {
			if claim, ok := w.Pop(large); !ok || claim.Name != "c0" {
				t.Fatalf("offered to %v", claim)
			}
			w.Add(first)
		})
		w.BeginSync(pvapi.NameOf(first.Claim))
	}
	return nobody, somebody
}

// TestWaitingFigures measures for whom a new volume is, among many that wait:
//
//	PODVOL_ASSERT_FIGURES=1 go test ./volume/persistentvolume/index -run WaitingFigures -v
func TestWaitingFigures(t *testing.T) {
	_, asserted := figures.Slack(t)
	few, many, rounds := 100, 1000, 1
	if asserted {
		few, many, rounds = 1000, 10_000, 15
	}
	nobodyOfFew, ofFew := offering(t, few, rounds)
	nobodyOfMany, ofMany := offering(t, many, rounds)
	for what, took := range map[string][2]time.Duration{"nobody": {nobodyOfFew, nobodyOfMany}, "somebody": {ofFew, ofMany}} {
		figures.ReportCurve(t, figures.Curve{What: "for whom a new volume is: " + what, Of: "claims that wait", Unit: figures.Wall, Limit: 3,
			Points: []figures.Point{{X: float64(few), Y: took[0].Seconds()}, {X: float64(many), Y: took[1].Seconds()}}})
	}
}
