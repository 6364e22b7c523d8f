package rows

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/volume/volumemanager"
)

// OfNode returns the row of a volume that a node knows, or the records.
func OfNode(v nodeserver.Volume) Row {
	r := Row{Pod: v.PodName(), Volume: v.Volume, Plugin: v.Plugin, Source: v.Source, State: v.State, Path: v.Path, DurationSeconds: v.DurationSeconds, Error: v.Error}
	if v.Server != nil && !v.Server.Answers {
		r.Server = v.Server.Name + " does not answer"
	}
	if v.State == string(volumemanager.StateUnused) {
		r.Detail = unusedDetail
	}
	return r
}

// AllOf returns the rows of volumes, in the order of pods and volumes. Pods of one name are told
// apart.
func AllOf(volumes []nodeserver.Volume, now time.Time) []Row {
	volumes, shared := slices.SortedStableFunc(slices.Values(volumes), Compare), SharedNames(volumes)
	all := make([]Row, len(volumes))
	for i, v := range volumes {
		all[i] = OfNode(v)
		if shared[v.PodName()] {
			all[i].PodUID, all[i].Node = v.PodUID, v.Node
		}
		if v.Error == "" && v.State != string(volumemanager.StateMounted) {
			if under := UnderWay(v, now); under != "" {
				all[i].Detail = "under way: " + under
			} else if v.WaitsFor != "" {
				all[i].Detail = "waits for " + v.WaitsFor
			}
		}
		if v.Source == "" && v.Claim != "" {
			all[i].Detail = cmp.Or(all[i].Detail, "claim "+v.Claim)
		}
	}
	return all
}

// Compare orders volumes as the manager does.
func Compare(a, b nodeserver.Volume) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod), strings.Compare(a.PodUID, b.PodUID), strings.Compare(a.Volume, b.Volume), strings.Compare(a.Path, b.Path))
}

// SharedNames are the names that several pods have, as those of several nodes.
func SharedNames(volumes []nodeserver.Volume) map[string]bool {
	first, shared := make(map[string]string), make(map[string]bool)
	for _, v := range volumes {
		name := v.PodName()
		if uid, known := first[name]; known && uid != v.PodUID {
			shared[name] = true
		}
		first[name] = v.PodUID
	}
	return shared
}

// UnderWay says which operation is under way, for how long, and how far it is; empty: none is.
func UnderWay(v nodeserver.Volume, now time.Time) string {
	if v.Operation == "" {
		return ""
	}
	text := fmt.Sprintf("%s for %s", v.Operation, duration.HumanDuration(max(0, now.Sub(v.Began))))
	if v.Progress != nil {
		text += ", " + v.Progress.String()
	}
	return text
}
