package nodepage

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/nodehttp/nodeevents"
	"github.com/podvol/podvol/volume/volumemanager"
)

const (
	// maxHistory is how many events of one object are shown.
	maxHistory = 6
	// maxOthers is how many events are shown of objects without a volume here.
	maxOthers = 20
)

// events are the recent events of a node, by the objects that they are about.
type events struct {
	of     map[string][]nodeevents.Event
	others []nodeevents.Event // of objects that no row names
}

func newEvents(all []nodeevents.Event, rows []volumemanager.VolumeStatus) events {
	if len(all) == 0 {
		return events{}
	}
	known := make(map[string]bool, 2*len(rows))
	for _, r := range rows {
		for _, key := range append(storageKeys(r), podKey(r)) {
			known[key] = true
		}
	}
	found := events{of: make(map[string][]nodeevents.Event)}
	latest := make(map[string]types.UID)
	for _, e := range all {
		key := e.Kind + " " + e.Namespace + "/" + e.Name
		if e.Kind == "Pod" {
			key = "Pod " + string(e.UID)
		}
		if !known[key] {
			found.others = append(found.others, e)
			continue
		}
		// A row is about the object that has the name now, and what was before is another's. That
		// it was deleted has no UID.
		if before := latest[key]; e.UID != "" && e.UID != before {
			latest[key] = e.UID
			if before != "" {
				found.others = append(found.others, found.of[key]...)
				found.of[key] = nil
			}
		}
		found.of[key] = append(found.of[key], e)
	}
	return found
}

func podKey(r volumemanager.VolumeStatus) string { return "Pod " + string(r.PodUID) }

// storageKeys are those of a volume's claim and its PersistentVolume.
func storageKeys(r volumemanager.VolumeStatus) (keys []string) {
	if r.Claim.Name != "" {
		keys = append(keys, "PersistentVolumeClaim "+r.Claim.String())
	}
	if r.PersistentVolume != "" {
		keys = append(keys, "PersistentVolume /"+r.PersistentVolume)
	}
	return keys
}

// history is what happened lately to something, the latest first.
type history struct {
	ID, Summary string
	Events      []happening
}

// happening is an event as it is shown.
type happening struct {
	At                        moment
	Reason, Text, Times, From string
	Class                     string
}

// history returns the events of some objects.
func (e events) history(id string, now time.Time, keys ...string) history {
	var all []nodeevents.Event
	for _, key := range keys {
		all = append(all, e.of[key]...)
	}
	return newHistory("events-"+id, all, now, maxHistory, false)
}

// newHistory shows the last events; named says that each has the name of its object.
func newHistory(id string, all []nodeevents.Event, now time.Time, most int, named bool) history {
	if len(all) == 0 {
		return history{}
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b nodeevents.Event) int { return b.Last.Compare(a.Last) })
	last := newMoment(all[0].Last, now)
	which := "Last event"
	if len(all) > 1 {
		which = fmt.Sprintf("Last of %d events", len(all))
	}
	h := history{ID: id, Summary: fmt.Sprintf("%s: %s, %s ago", which, plain(all[0].Reason), last.Ago)}
	for _, e := range all[:min(len(all), most)] {
		shown := happening{At: newMoment(e.Last, now), Reason: plain(e.Reason), Text: plain(e.Message), Class: "none"}
		if e.IsWarning() {
			shown.Class = "wait"
		}
		if e.Count > 1 {
			shown.Times = fmt.Sprintf("%d times in %s", e.Count, span(e.Last.Sub(e.First)))
		}
		if named {
			shown.From = plain(nameOf(e))
		}
		h.Events = append(h.Events, shown)
	}
	return h
}

// nameOf names the object of an event.
func nameOf(e nodeevents.Event) string {
	kind := map[string]string{"Pod": "pod", "PersistentVolumeClaim": "claim", "PersistentVolume": "volume"}[e.Kind]
	if e.Namespace == "" {
		return kind + " " + e.Name
	}
	return kind + " " + e.Namespace + "/" + e.Name
}
