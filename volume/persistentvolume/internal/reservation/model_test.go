package reservation_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
)

// Whatever is reserved, assumed and forgotten in whichever order, the table grants what the
// rules on paper grant, enqueues all that asked in vain once it is free, and keeps nothing.
func TestTheTableGrantsWhatTheRulesGrant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &history{index: index.New(), held: make(map[string]*held), vain: make(map[string]map[string]bool)}
		h.table, h.queue = newTable(h.index)
		for _, name := range []string{"pv0", "pv1"} {
			h.index.Put(pvbuild.NewPV(name, "1Gi"))
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve": h.reserve, "provision": h.provision, "for a pod": h.forPod, "write": h.write, "operate": h.operate,
			"forget": h.forget, "assume": h.assume,
			"": h.check,
		})
		for _, key := range slices.Sorted(maps.Keys(h.held)) {
			if has := h.held[key]; has != nil {
				has.entry.Forget()
				h.end(has)
			}
		}
		h.check(t)
		for _, name := range []string{"pv0", "pv1"} {
			if _, free := h.index.Free(name); !free && !h.bound(name) {
				t.Fatalf("%s is not free in the end", name)
			}
		}
	})
}

// history is a table, and beside it the entries by what they have: "data pv0", "choice a".
type history struct {
	table *reservation.Table
	index *index.Index
	queue *enqueued
	held  map[string]*held
	// vain are the objects that asked for something in vain, by what they asked for.
	vain map[string]map[string]bool
	ends []string // what became free since the last check
}

type held struct {
	entry  *reservation.Entry
	things []string
}

func (h *history) bound(volumeName string) bool {
	pv, _ := h.index.Volume(volumeName)
	return pv.Spec.ClaimRef != nil
}

// ask compares an answer with what is held, and notes it.
func (h *history) ask(t *rapid.T, e *reservation.Entry, granted bool, about string, things ...string) {
	taken := slices.IndexFunc(things, func(thing string) bool { return h.held[thing] != nil })
	if granted != (taken < 0) {
		t.Fatalf("%v: granted %v; %v", things, granted, h.held)
	}
	if !granted {
		if about != "" {
			if h.vain[things[taken]] == nil {
				h.vain[things[taken]] = make(map[string]bool)
			}
			h.vain[things[taken]][about] = true
		}
		return
	}
	for _, thing := range things {
		h.held[thing] = &held{e, things}
	}
}

func (h *history) end(has *held) {
	for _, thing := range has.things {
		delete(h.held, thing)
		h.ends = append(h.ends, thing)
	}
}

func anyOf(t *rapid.T, what string, from ...string) string {
	return rapid.SampledFrom(from).Draw(t, what)
}

func (h *history) reserve(t *rapid.T) {
	name, volumeName := anyOf(t, "claim", "a", "b"), anyOf(t, "volume", "pv0", "pv1")
	if h.bound(volumeName) {
		t.Skip("it is bound")
	}
	e, err := h.table.Reserve(index.Wanted{Claim: pvbuild.NewClaim(name, "1Gi", pvbuild.Naming(volumeName))})
	things := []string{"choice " + name, "data " + volumeName}
	if h.held[things[0]] == nil && err != nil { // one that finds no volume waits for it elsewhere
		h.ask(t, e, false, "", things...)
		return
	}
	h.ask(t, e, err == nil, name, things...)
}

func (h *history) provision(t *rapid.T) {
	name := anyOf(t, "claim", "a", "b")
	e, err := h.table.ReserveProvisioning(index.IDOf(pvbuild.NewClaim(name, "1Gi")))
	h.ask(t, e, err == nil, name, "choice "+name)
}

func (h *history) forPod(t *rapid.T) {
	name, pod := anyOf(t, "claim", "a", "b"), anyOf(t, "pod", "1", "2")
	e, other := h.table.ReserveForPod(claimName(name), podOf("pod", pod))
	key := "use " + name
	if has := h.held[key]; has != nil && has.entry.Pod() == podOf("pod", pod) {
		delete(h.held, key) // the same pod's later call counts
	}
	h.ask(t, e, other == nil, "", key)
}

func (h *history) write(t *rapid.T) {
	name := anyOf(t, "volume", "pv0", "pv1")
	e, ok := h.table.TryWriting(name)
	h.ask(t, e, ok, name, "object "+name)
}

func (h *history) operate(t *rapid.T) {
	name, things := anyOf(t, "volume", "pv0", "pv1"), []string(nil)
	removes := rapid.Bool().Draw(t, "it removes")
	about := anyOf(t, "about", "x", "y")
	e, ok := h.table.ReserveStorage(name, removes, volume.NewObjectRef("PersistentVolume", "", about))
	things = append(things, "storage "+name)
	if removes {
		things = append(things, "data "+name)
	}
	h.ask(t, e, ok, about, things...)
}

func (h *history) any(t *rapid.T, which func(*held) bool) *held {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(h.held)) {
		if which(h.held[key]) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		t.Skip("there is none")
	}
	return h.held[rapid.SampledFrom(keys).Draw(t, "entry")]
}

func (h *history) forget(t *rapid.T) {
	has := h.any(t, func(*held) bool { return true })
	has.entry.Forget()
	has.entry.Forget() // too late
	h.end(has)
}

func (h *history) assume(t *rapid.T) {
	has := h.any(t, func(has *held) bool { return has.entry.Kind() == reservation.Assumed })
	pv := has.entry.Volume().DeepCopy()
	pvbuild.ForClaim(has.entry.Claim().Name, has.entry.Claim().UID)(pv)
	has.entry.Assume(pv)
	has.entry.Forget() // too late
	h.end(has)
	if !h.bound(pv.Name) {
		t.Fatalf("%s is not known to be bound", pv.Name)
	}
}

func (h *history) check(t *rapid.T) {
	told := h.queue.take()
	for _, thing := range h.ends {
		for about := range h.vain[thing] {
			if !slices.Contains(told, "enqueue "+about) {
				t.Fatalf("%s is free, and %s was not enqueued but %v", thing, about, told)
			}
		}
		delete(h.vain, thing)
	}
	h.ends = nil
	for _, name := range []string{"pv0", "pv1"} {
		has := h.held["data "+name]
		if _, free := h.index.Free(name); free != (has == nil && !h.bound(name)) {
			t.Fatalf("%s is free in the index: %v; held: %v", name, free, has)
		}
		if assumed := has != nil && has.entry.Kind() == reservation.Assumed; h.table.IsAssumed(name) != assumed {
			t.Fatalf("%s is assumed: %v, want %v", name, !assumed, assumed)
		}
		for _, claim := range []string{"a", "b"} {
			id := index.IDOf(pvbuild.NewClaim(claim, "1Gi"))
			may := has == nil || has.entry.Claim() == id
			if err := h.table.May(id, name); (err == nil) != may {
				t.Fatalf("%s may have %s: %v, want %v", claim, name, err, may)
			}
			if got, _ := h.table.Match(index.Wanted{Claim: pvbuild.NewClaim(claim, "1Gi", pvbuild.Naming(name))}); has != nil && has.entry.Claim() == id && got.Name != name {
				t.Fatalf("%s has %s and would get %s", claim, name, fmt.Sprint(got))
			}
		}
	}
}
