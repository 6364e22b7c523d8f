package persistentvolume_test

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

	"github.com/podvol/podvol/volume/persistentvolume"
)

// Whatever happens to volumes, claims, records and reservations, the index
// chooses what a look at every volume chooses, and refuses for the same
// reasons.
func TestIndexChoosesAsAScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{
			index: persistentvolume.NewIndex(), volumes: make(map[string]*v1.PersistentVolume), claims: make(map[string]*v1.PersistentVolumeClaim),
			open: make(map[persistentvolume.ClaimID]*persistentvolume.Reservation),
		}
		t.Repeat(map[string]func(*rapid.T){
			"put a volume": h.putVolume, "put many volumes": h.putMany, "delete a volume": h.deleteVolume,
			"put a claim": h.putClaim, "delete a claim": h.deleteClaim,
			"reserve": h.reserve, "commit": h.commit, "release": h.release,
			"": h.check,
		})
	})
}

// history is an index, and beside it what it should know.
type history struct {
	index   *persistentvolume.Index
	volumes map[string]*v1.PersistentVolume
	claims  map[string]*v1.PersistentVolumeClaim // those that the index was told of
	open    map[persistentvolume.ClaimID]*persistentvolume.Reservation
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

func (h *history) scan() *scan {
	s := &scan{
		volumes: slices.Collect(maps.Values(h.volumes)), claims: slices.Collect(maps.Values(h.claims)),
		reserved: make(map[string]persistentvolume.ClaimID),
	}
	for id, r := range h.open {
		s.reserved[r.Volume().Name] = id
	}
	return s
}

func (h *history) reserve(t *rapid.T) {
	w := anyWanted(t)
	id := persistentvolume.IDOf(w.Claim)
	want, _ := h.scan().match(w)
	r, err := h.index.Reserve(w)
	switch _, reserved := h.open[id]; {
	case reserved:
		if !errors.Is(err, persistentvolume.ErrReserved) {
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

func (h *history) anyOpen(t *rapid.T) (persistentvolume.ClaimID, *persistentvolume.Reservation) {
	if len(h.open) == 0 {
		t.Skip("nothing is reserved")
	}
	ids := slices.SortedFunc(maps.Keys(h.open), func(a, b persistentvolume.ClaimID) int {
		return slices.Compare([]byte(a.Name+string(a.UID)), []byte(b.Name+string(b.UID)))
	})
	id := rapid.SampledFrom(ids).Draw(t, "reservation")
	r := h.open[id]
	delete(h.open, id)
	return id, r
}

func (h *history) commit(t *rapid.T) {
	id, r := h.anyOpen(t)
	h.version++
	pv := r.Volume().DeepCopy()
	pv.ResourceVersion = strconv.Itoa(h.version)
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: id.Namespace, Name: id.Name, UID: id.UID}
	h.volumes[pv.Name] = pv
	r.Commit(pv)
	r.Release() // which comes too late
}

func (h *history) release(t *rapid.T) {
	_, r := h.anyOpen(t)
	r.Release()
	r.Commit(newPV("late", "1Gi")) // too late as well
}

func (h *history) check(t *rapid.T) {
	w := anyWanted(t)
	want, refused := h.scan().match(w)
	got, err := h.index.Match(w)
	if want != nil {
		if err != nil || got.Name != want.Name {
			t.Fatalf("got %v, %v; want %s", nameOf(got), err, want.Name)
		}
		return
	}
	unbound, ok := errors.AsType[*persistentvolume.UnboundError](err)
	if !ok {
		t.Fatalf("got %v, %v; want none", got, err)
	}
	told := make(map[persistentvolume.Reason]int)
	for _, r := range unbound.Rejected {
		told[r.Reason] = r.Count
		if len(r.First) != min(r.Count, 3) {
			t.Fatalf("%s: %d of %d volumes are named", r.Reason, len(r.First), r.Count)
		}
		if !slices.IsSortedFunc(r.First, func(a, b persistentvolume.Rejection) int { return smaller(h.volumes[a.Volume], h.volumes[b.Volume]) }) {
			t.Fatalf("%s: %v are not in order", r.Reason, r.First)
		}
	}
	if !maps.Equal(told, refused) {
		t.Fatalf("refused for %v, want %v", told, refused)
	}
}

func anyVolume(t *rapid.T, name string) *v1.PersistentVolume {
	pv := newPV(name, anySize(t))
	// Most options are rare, else hardly anything would fit.
	options := map[string]pvOption{
		"class": class("fast"), "beta class": betaClassed("fast"), "block": ofMode(v1.PersistentVolumeBlock), "attributes": withAttributes("gold"),
		"deleting": beingDeleted, "released": inPhase(v1.VolumeReleased), "no source": withoutSource, "no capacity": withoutCapacity,
		"for a claim": forClaim(fmt.Sprintf("c%d", rapid.IntRange(0, 3).Draw(t, "for")), types.UID(rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, "uid"))),
		"rwo":         withModes(rwo), "all modes": withModes(rwo, rwx, rox),
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

func anyTerm(t *rapid.T) pvOption {
	if rapid.IntRange(0, 3).Draw(t, "by name") == 0 {
		return nameAffinity(rapid.SampledFrom([]v1.NodeSelectorOperator{v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn}).Draw(t, "operator"), anyNode(t))
	}
	var expressions []v1.NodeSelectorRequirement
	for range rapid.IntRange(0, 2).Draw(t, "expressions") {
		key := rapid.SampledFrom([]string{v1.LabelHostname, "zone"}).Draw(t, "key")
		switch operator := rapid.SampledFrom([]v1.NodeSelectorOperator{
			v1.NodeSelectorOpIn, v1.NodeSelectorOpIn, v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn, v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist,
		}).Draw(t, "operator"); operator {
		case v1.NodeSelectorOpExists, v1.NodeSelectorOpDoesNotExist:
			expressions = append(expressions, require(key, operator))
		default:
			expressions = append(expressions, require(key, operator, rapid.SliceOfN(rapid.SampledFrom([]string{"node1", "node2", "a", "b"}), 1, 3).Draw(t, "values")...))
		}
	}
	return affinity(expressions...)
}

func anyNode(t *rapid.T) string {
	return rapid.SampledFrom([]string{"node1", "node1", "node2"}).Draw(t, "node")
}

func anyClaim(t *rapid.T) *v1.PersistentVolumeClaim {
	c := newClaim(fmt.Sprintf("c%d", rapid.IntRange(0, 3).Draw(t, "claim")), anySize(t))
	c.UID = types.UID(rapid.SampledFrom([]string{"1", "1", "2"}).Draw(t, "uid"))
	options := map[string]claimOption{
		"class": ofClass("fast"), "no class": ofClass(""), "beta class": wantsBetaClass("fast"), "block": wantsMode(v1.PersistentVolumeBlock), "attributes": wantsAttributes("gold"),
		"named": naming(volumeName().Draw(t, "named volume")), "modes": wantsModes(rwo, rox),
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
			selecting(key, operator)(c)
		default:
			selecting(key, operator, rapid.SliceOfN(rapid.SampledFrom([]string{"", "a", "b"}), 1, 2).Draw(t, "values")...)(c)
		}
	}
	return c
}

func anyWanted(t *rapid.T) persistentvolume.Wanted {
	w := persistentvolume.Wanted{Claim: anyClaim(t), DefaultClass: rapid.SampledFrom([]string{"", "fast"}).Draw(t, "default class")}
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
