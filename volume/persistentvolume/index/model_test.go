package index_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
)

// Whatever happens to volumes, claims, records and reservations, the index
// chooses what a look at every volume chooses, and refuses for the same
// reasons.
func TestIndexChoosesAsAScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{
			index: index.New(), volumes: make(map[string]*v1.PersistentVolume), claims: make(map[string]*v1.PersistentVolumeClaim),
			open: make(map[index.ClaimID]*reservation.Entry),
		}
		h.table = reservation.New(reservation.Config{Index: h.index, Waiting: index.NewWaiting(), Queue: noQueue{}})
		t.Repeat(map[string]func(*rapid.T){
			"put a volume": h.putVolume, "put many volumes": h.putMany, "delete a volume": h.deleteVolume,
			"put a claim": h.putClaim, "delete a claim": h.deleteClaim,
			"reserve": h.reserve, "assume": h.assume, "forget": h.forget,
			"": h.check,
		})
	})
}

// noQueue is for tables that have nothing looked at.
type noQueue struct{}

func (noQueue) Enqueue(volume.ObjectRef)           {}
func (noQueue) EnqueueAfterPause(volume.ObjectRef) {}
func (noQueue) EnqueueIfChanged(volume.ObjectRef)  {}

// history is an index with a table of reservations, and beside it what they should know.
type history struct {
	index   *index.Index
	table   *reservation.Table
	volumes map[string]*v1.PersistentVolume
	claims  map[string]*v1.PersistentVolumeClaim // those that the index was told of
	open    map[index.ClaimID]*reservation.Entry
	version int
}

func volumeName() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string { return fmt.Sprintf("pv%d", rapid.IntRange(0, 11).Draw(t, "volume")) })
}

func (h *history) put(pv *v1.PersistentVolume) {
	h.version++
	pv.ResourceVersion = strconv.Itoa(h.version)
	h.volumes[pv.Name] = pv
	h.index.Put(pv)
}

func (h *history) putVolume(t *rapid.T) {
	pv := anyVolume(t, volumeName().Draw(t, "name"))
	late, had := h.volumes[pv.Name]
	h.put(pv)
	if had && rapid.Bool().Draw(t, "an event comes late") {
		h.index.Put(late)
	}
}

// putMany makes lists of many runs.
func (h *history) putMany(t *rapid.T) {
	template := anyVolume(t, "many")
	for i := range rapid.IntRange(1, 300).Draw(t, "count") {
		pv := template.DeepCopy()
		pv.Name = fmt.Sprintf("many%d", i)
		h.put(pv)
	}
}

func (h *history) deleteVolume(t *rapid.T) {
	name := rapid.SampledFrom(append(slices.Sorted(maps.Keys(h.volumes)), "nix")).Draw(t, "name")
	delete(h.volumes, name)
	h.index.Delete(name)
}

func (h *history) putClaim(t *rapid.T) {
	c := anyClaim(t)
	h.claims[c.Name] = c
	h.index.PutClaim(c)
}

func (h *history) deleteClaim(t *rapid.T) {
	name := fmt.Sprintf("c%d", rapid.IntRange(0, 3).Draw(t, "claim"))
	delete(h.claims, name)
	h.index.DeleteClaim(types.NamespacedName{Namespace: "ops", Name: name})
}

func (h *history) scan() *pvbuild.Scan {
	s := &pvbuild.Scan{
		Volumes: slices.Collect(maps.Values(h.volumes)), Claims: slices.Collect(maps.Values(h.claims)),
		Reserved: make(map[string]index.ClaimID),
	}
	for id, r := range h.open {
		s.Reserved[r.Volume().Name] = id
	}
	return s
}

func (h *history) reserve(t *rapid.T) {
	w := anyWanted(t)
	id := index.IDOf(w.Claim)
	want, _ := h.scan().Match(w)
	r, err := h.table.Reserve(w)
	switch _, reserved := h.open[id]; {
	case reserved:
		if !errors.Is(err, index.ErrReserved) {
			t.Fatalf("a second reservation of %s: %v, %v", id, r, err)
		}
	case want == nil:
		if err == nil {
			t.Fatalf("%s reserved %s, and should not have", id, r.Volume().Name)
		}
	case err != nil || r.Volume().Name != want.Name:
		t.Fatalf("reserved %v, %v; want %s", r, err, want.Name)
	default:
		h.open[id] = r
	}
}

func (h *history) anyOpen(t *rapid.T) (index.ClaimID, *reservation.Entry) {
	if len(h.open) == 0 {
		t.Skip("nothing is reserved")
	}
	ids := slices.SortedFunc(maps.Keys(h.open), func(a, b index.ClaimID) int {
		return slices.Compare([]byte(a.Name+string(a.UID)), []byte(b.Name+string(b.UID)))
	})
	id := rapid.SampledFrom(ids).Draw(t, "reservation")
	r := h.open[id]
	delete(h.open, id)
	return id, r
}

func (h *history) assume(t *rapid.T) {
	id, r := h.anyOpen(t)
	h.version++
	pv := r.Volume().DeepCopy()
	pv.ResourceVersion = strconv.Itoa(h.version)
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: id.Namespace, Name: id.Name, UID: id.UID}
	h.volumes[pv.Name] = pv
	r.Assume(pv)
	r.Forget() // which comes too late
}

func (h *history) forget(t *rapid.T) {
	_, r := h.anyOpen(t)
	r.Forget()
	r.Assume(pvbuild.NewPV("late", "1Gi")) // too late as well
}

func (h *history) check(t *rapid.T) {
	w := anyWanted(t)
	want, refused := h.scan().Match(w)
	got, err := h.table.Match(w)
	if want != nil {
		if err != nil || got.Name != want.Name {
			t.Fatalf("got %v, %v; want %s", pvbuild.VolumeName(got), err, want.Name)
		}
		return
	}
	unbound, ok := errors.AsType[*index.UnboundError](err)
	if !ok {
		t.Fatalf("got %v, %v; want none", got, err)
	}
	told := make(map[index.Reason]int)
	for _, r := range unbound.Rejected {
		told[r.Reason] = r.Count
		if len(r.First) != min(r.Count, 3) {
			t.Fatalf("%s: %d of %d volumes are named", r.Reason, len(r.First), r.Count)
		}
		if !slices.IsSortedFunc(r.First, func(a, b index.Rejection) int { return pvbuild.Smaller(h.volumes[a.Volume], h.volumes[b.Volume]) }) {
			t.Fatalf("%s: %v are not in order", r.Reason, r.First)
		}
	}
	if !maps.Equal(told, refused) {
		t.Fatalf("refused for %v, want %v", told, refused)
	}
}

func anyVolume(t *rapid.T, name string) *v1.PersistentVolume {
	pv := pvbuild.NewPV(name, anySize(t))
	// Most options are rare, else hardly anything would fit.
	options := map[string]pvbuild.Option{
		"class": pvbuild.Class("fast"), "beta class": pvbuild.BetaClassed("fast"), "block": pvbuild.OfMode(v1.PersistentVolumeBlock), "attributes": pvbuild.WithAttributes("gold"),
		"deleting": pvbuild.BeingDeleted, "released": pvbuild.InPhase(v1.VolumeReleased), "no source": pvbuild.WithoutSource, "no capacity": pvbuild.WithoutCapacity,
		"for a claim": pvbuild.ForClaim(fmt.Sprintf("c%d", rapid.IntRange(0, 3).Draw(t, "for")), types.UID(rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "uid"))),
		"rwo":         pvbuild.WithModes(pvbuild.Rwo), "all modes": pvbuild.WithModes(pvbuild.Rwo, pvbuild.Rwx, pvbuild.Rox),
	}
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if rapid.IntRange(0, 9).Draw(t, key) == 1 {
			options[key](pv)
		}
	}
	for _, key := range []string{"disk", "zone"} {
		if rapid.Bool().Draw(t, "labelled") {
			metav1.SetMetaDataLabel(&pv.ObjectMeta, key, rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, key))
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "terms") {
		anyTerm(t)(pv)
	}
	return pv
}

func anySize(t *rapid.T) string {
	return rapid.SampledFrom([]string{"1Gi", "1Gi", "2Gi", "3Gi", "1024Mi", "1500m"}).Draw(t, "size")
}

func anyTerm(t *rapid.T) pvbuild.Option {
	if rapid.IntRange(0, 3).Draw(t, "by name") == 0 {
		return pvbuild.NameAffinity(rapid.SampledFrom([]v1.NodeSelectorOperator{v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn}).Draw(t, "operator"), anyNode(t))
	}
	var expressions []v1.NodeSelectorRequirement
	for range rapid.IntRange(0, 2).Draw(t, "expressions") {
		key := rapid.SampledFrom([]string{v1.LabelHostname, "zone"}).Draw(t, "key")
		switch operator := rapid.SampledFrom([]v1.NodeSelectorOperator{
			v1.NodeSelectorOpIn, v1.NodeSelectorOpIn, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn, v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist,
		}).Draw(t, "operator"); operator {
		case v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist:
			expressions = append(expressions, pvbuild.Require(key, operator))
		default:
			expressions = append(expressions, pvbuild.Require(key, operator, rapid.SliceOfN(rapid.SampledFrom([]string{"node1", "node2", "a", "b"}), 1, 3).Draw(t, "values")...))
		}
	}
	return pvbuild.Affinity(expressions...)
}

func anyNode(t *rapid.T) string {
	return rapid.SampledFrom([]string{"node1", "node1", "node2"}).Draw(t, "node")
}

func anyClaim(t *rapid.T) *v1.PersistentVolumeClaim {
	c := pvbuild.NewClaim(fmt.Sprintf("c%d", rapid.IntRange(0, 3).Draw(t, "claim")), anySize(t))
	c.UID = types.UID(rapid.SampledFrom([]string{"1", "1", "2"}).Draw(t, "uid"))
	options := map[string]pvbuild.ClaimOption{
		"class": pvbuild.OfClass("fast"), "no class": pvbuild.OfClass(""), "beta class": pvbuild.WantsBetaClass("fast"), "block": pvbuild.WantsMode(v1.PersistentVolumeBlock), "attributes": pvbuild.WantsAttributes("gold"),
		"named": pvbuild.Naming(volumeName().Draw(t, "named volume")), "modes": pvbuild.WantsModes(pvbuild.Rwo, pvbuild.Rox),
	}
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if rapid.IntRange(0, 9).Draw(t, key) == 1 {
			options[key](c)
		}
	}
	for range rapid.IntRange(0, 2).Draw(t, "requirements") {
		key := rapid.SampledFrom([]string{"disk", "zone"}).Draw(t, "key")
		switch operator := rapid.SampledFrom([]metav1.LabelSelectorOperator{
			metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
		}).Draw(t, "operator"); operator {
		case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
			pvbuild.Selecting(key, operator)(c)
		default:
			pvbuild.Selecting(key, operator, rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b"}), 1, 2).Draw(t, "values")...)(c)
		}
	}
	return c
}

func anyWanted(t *rapid.T) index.Wanted {
	w := index.Wanted{Claim: anyClaim(t), DefaultClass: rapid.SampledFrom([]string{"", "fast"}).Draw(t, "default class")}
	w.Delayed = rapid.IntRange(0, 9).Draw(t, "delayed") == 1
	if rapid.IntRange(0, 3).Draw(t, "placed") > 0 {
		w.NodeName = anyNode(t)
		w.NodeLabels = make(map[string]string)
		for _, key := range []string{v1.LabelHostname, "zone"} {
			if rapid.Bool().Draw(t, "has "+key) {
				w.NodeLabels[key] = rapid.SampledFrom([]string{"node1", "a", "b"}).Draw(t, key)
			}
		}
	}
	return w
}
