package nodepage

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/volumemanager"
)

const (
	// perPage is how many volumes a page has.
	perPage = 100
	// maxText is how much of an error or a name is shown, in characters.
	maxText = 2000
	// maxWaits is how many reasons to wait are listed.
	maxWaits = 20
	// maxRefused is how many refused manifests are listed.
	maxRefused = 20
)

// view is what a page shows.
type view struct {
	Node, Query, State         string
	Summary, Damaged           string
	Taken                      moment
	States                     []choice
	Waits                      []wait
	Pods                       []pod
	First, Last, Matching, All int
	Narrowed                   bool   // not all match
	Before, After              string // addresses of other pages
	Servers                    []server
	Drivers                    []driver
	Refused                    []refused
	MoreRefused                int     // than are listed
	Others                     history // of what has no volume here
}

// choice is a state that volumes can be selected by.
type choice struct {
	State, Name, Class string
	Address            string
	Count              int
	Chosen             bool
}

// newView selects what a request asks for.
func newView(node string, l *look, asked url.Values) view {
	v := view{Node: plain(node), Query: plain(asked.Get("q")), State: plain(asked.Get("state")), Taken: moment{Machine: l.taken.UTC().Format(time.RFC3339), Clock: l.taken.UTC().Format(time.DateTime)}, All: len(l.rows)}
	if l.damaged != nil {
		v.Damaged = plain(l.damaged.Error())
	}
	v.count(l.rows)
	v.Waits = waits(l.rows)
	v.Servers = servers(l.rows, l.taken)
	v.refuse(l)
	for i, d := range l.drivers {
		d.Name, d.Version, d.Error, d.State = plain(d.Name), plain(d.Version), plain(d.Error), plain(d.State)
		d.Calls = slices.Clone(d.Calls)
		for n, call := range d.Calls {
			d.Calls[n] = plain(call)
		}
		class := "good"
		if d.Trouble {
			class = "bad"
		}
		v.Drivers = append(v.Drivers, driver{d, fmt.Sprintf("driver-%d", i), class, newMoment(d.Since, l.taken)})
	}
	selected := v.selected(l.rows)
	number, _ := strconv.Atoi(asked.Get("page")) // anything else is the first
	v.Matching, v.Narrowed = len(selected), len(selected) != len(l.rows)
	number = min(max(number, 1), max(1, (len(selected)+perPage-1)/perPage))
	first := (number - 1) * perPage
	last := min(first+perPage, len(selected))
	v.Pods = pods(selected[first:last], l)
	if v.Query == "" && v.State == "" {
		v.Others = newHistory("events-others", l.events.others, l.taken, maxOthers, true)
	}
	if v.Last = last; last > 0 {
		v.First = first + 1
	}
	if first > 0 {
		v.Before = address(v.Query, v.State, number-1)
	}
	if last < len(selected) {
		v.After = address(v.Query, v.State, number+1)
	}
	return v
}

// refused is a manifest that the node refuses.
type refused struct {
	Path, Reason string
	Since        moment
}

// refuse fills the manifests that the node refuses.
func (v *view) refuse(l *look) {
	for _, r := range l.refused[:min(len(l.refused), maxRefused)] {
		v.Refused = append(v.Refused, refused{plain(r.Path), plain(r.Reason), newMoment(r.Since, l.taken)})
	}
	v.MoreRefused = len(l.refused) - len(v.Refused)
}

// address is that of a page with these volumes.
func address(query, state string, number int) string {
	values := url.Values{}
	if query != "" {
		values.Set("q", query)
	}
	if state != "" {
		values.Set("state", state)
	}
	if number > 1 {
		values.Set("page", strconv.Itoa(number))
	}
	return "./?" + values.Encode()
}

// count fills the states and the summary.
func (v *view) count(rows []volumemanager.VolumeStatus) {
	counts, pods, troubled := make(map[string]int), make(map[types.UID]bool), 0
	for _, r := range rows {
		counts[string(r.State)]++
		pods[r.PodUID] = true
		if troubleOf(r) != fine {
			troubled++
		}
	}
	add := func(state, name, class string, n int) {
		v.States = append(v.States, choice{state, name, class, address(v.Query, state, 1), n, v.State == state})
	}
	add("", "all", "all", len(rows))
	add("troubled", "need a look", "doubt", troubled)
	for _, s := range []struct{ state, class string }{{"mounted", "good"}, {"pending", "wait"}, {"failed", "bad"}, {"detached", "bad"}, {"not used", "none"}} {
		if n := counts[s.state]; n > 0 || s.state == "mounted" || v.State == s.state {
			add(s.state, s.state, s.class, n)
		}
	}
	v.Summary = fmt.Sprintf("%s of %s: ", number(len(rows), "volume"), number(len(pods), "pod"))
	if troubled == 0 {
		v.Summary += "all are in order."
	} else {
		v.Summary += fmt.Sprintf("%d mounted, %d pending, %d failed.", counts["mounted"], counts["pending"], counts["failed"]+counts["detached"])
	}
	if len(rows) == 0 {
		v.Summary = "No volumes."
	}
}

// selected are the rows that have the text and the state that are asked for, those of pods
// with trouble first.
func (v *view) selected(rows []volumemanager.VolumeStatus) []volumemanager.VolumeStatus {
	worst := make(map[types.UID]trouble)
	var found []volumemanager.VolumeStatus
	text := strings.ToLower(v.Query)
	for _, r := range rows {
		t := troubleOf(r)
		switch v.State {
		case "":
		case "troubled":
			if t == fine {
				continue
			}
		default:
			if string(r.State) != v.State {
				continue
			}
		}
		if text != "" && !has(r, text) {
			continue
		}
		if before, ok := worst[r.PodUID]; !ok || t < before {
			worst[r.PodUID] = t
		}
		found = append(found, r)
	}
	slices.SortStableFunc(found, func(a, b volumemanager.VolumeStatus) int {
		return cmp.Or(cmp.Compare(worst[a.PodUID], worst[b.PodUID]), strings.Compare(a.Pod.Namespace, b.Pod.Namespace),
			strings.Compare(a.Pod.Name, b.Pod.Name), strings.Compare(string(a.PodUID), string(b.PodUID)))
	})
	return found
}

// has reports whether a row has a text, in small letters, in anything that the page shows.
func has(r volumemanager.VolumeStatus, text string) bool {
	for _, s := range []string{r.Pod.String(), r.Volume, r.Source, r.Plugin, string(r.State), r.Claim.String(), r.PersistentVolume, r.Server.Source, string(r.PodUID)} {
		if strings.Contains(strings.ToLower(s), text) {
			return true
		}
	}
	return r.Err != nil && strings.Contains(strings.ToLower(r.Err.Error()), text) || strings.Contains(strings.ToLower(r.WaitsFor()), text)
}
