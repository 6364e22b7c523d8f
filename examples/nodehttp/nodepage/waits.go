package nodepage

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/volumemanager"
)

// wait is a reason to wait, and how many volumes have it.
type wait struct {
	For     string
	Address string // of the page with these volumes
	Volumes int
	Pods    int
	pods    map[types.UID]bool
}

// waits says for what volumes wait, and how many for each.
func waits(rows []volumemanager.VolumeStatus) []wait {
	found := make(map[string]*wait)
	for _, r := range rows {
		if t := troubleOf(r); t != failing && t != pending {
			continue
		}
		what, query, state := waitsFor(r)
		w := found[what]
		if w == nil {
			w = &wait{For: plain(what), Address: address(query, state, 1), pods: make(map[types.UID]bool)}
			found[what] = w
		}
		w.Volumes++
		w.pods[r.PodUID] = true
	}
	var all []wait
	for _, w := range found {
		w.Pods = len(w.pods)
		all = append(all, *w)
	}
	slices.SortFunc(all, func(a, b wait) int {
		return cmp.Or(cmp.Compare(b.Volumes, a.Volumes), strings.Compare(a.For, b.For))
	})
	return all[:min(len(all), maxWaits)]
}

// waitsFor says what one volume waits for, and selects those that do.
func waitsFor(r volumemanager.VolumeStatus) (what, query, state string) {
	if what := r.WaitsFor(); what != "" {
		return what, what, ""
	}
	switch {
	case r.Operation != "":
		return fmt.Sprintf("the end of a %s by %s", r.Operation, r.Plugin), r.Plugin, string(r.State)
	case !r.NextRetry.IsZero():
		return "the next try by " + r.Plugin, r.Plugin, string(r.State)
	}
	return "a change, or a person", "", string(r.State)
}
