package nodepage

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/nodehttp/nodepage/internal/markup"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumesource"
)

const (
	// perPage is how many volumes a page has.
	perPage = 100
	// maxText is how much of an error or a name is shown, in characters.
	maxText = 2000
	// maxWaits is how many reasons to wait are listed.
	maxWaits = 20
)

// view is what the template is given.
type view struct {
	Node, Query, State, Version string
	Summary, Damaged            string
	Taken                       moment
	States                      []choice
	Waits                       []wait
	Pods                        []pod
	First, Last, Matching, All  int
	Narrowed                    bool        // not all match
	Before, After               markup.Link // other pages
	Servers                     []server
	Drivers                     []driver
	Style                       markup.Own
	Script                      markup.Own
}

// choice is a state that volumes can be selected by.
type choice struct {
	State, Name, Class string
	Address            markup.Link
	Count              int
	Chosen             bool
}

// wait is a reason to wait, and how many volumes have it.
type wait struct {
	For     string
	Address markup.Link // of the page with these volumes
	Volumes int
	Pods    int
	pods    map[types.UID]bool
}

type pod struct {
	ID, Name, UID, Note string
	Volumes             []row
}

type row struct {
	ID, Name, State, Class, Source, Plugin, Claim string
	Since                                         moment
	Text                                          string   // of the error
	Advice                                        string   // the error's further lines
	Notes                                         []string // what goes on, and what comes next
	Explained                                     bool     // by Text or Notes
}

type server struct {
	ID, Name, State, Class, Error string
	Address                       markup.Link
	Since                         moment
	Retry, Volumes                string
	Explained                     bool // by Error or Retry
}

type driver struct {
	Driver
	ID, Class string
	Since     moment
}

// moment is a time for people, and how long ago it is. Machine is the same time in RFC 3339.
type moment struct{ Machine, Clock, Ago string }

func newMoment(t, now time.Time) moment {
	if t.IsZero() {
		return moment{}
	}
	t, now = t.UTC(), now.UTC()
	layout := "2006-01-02 15:04"
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		layout = time.TimeOnly
	}
	return moment{t.Format(time.RFC3339), t.Format(layout), span(now.Sub(t))}
}

// span is a length of time in its largest unit.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// plain is a text without what changes a reader's eye: controls and directions of writing. It
// is not endless.
func plain(text string) string {
	n := 0
	for at := range text {
		if n++; n > maxText {
			text = text[:at] + "…"
			break
		}
	}
	return strings.Map(func(r rune) rune {
		if r != '\n' && (unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(text, string(unicode.ReplacementChar)))
}

// trouble is how much a volume needs a person's eye, the most first.
type trouble int

const (
	failing trouble = iota
	pending
	doubtful
	fine
)

func troubleOf(v volumemanager.VolumeStatus) trouble {
	switch {
	case v.State == volumemanager.StateFailed || v.State == volumemanager.StateDetached:
		return failing
	case v.State == volumemanager.StatePending:
		return pending
	case v.Err != nil || v.Attachment != nil || v.Condition != nil && v.Condition.Abnormal:
		return doubtful
	}
	return fine
}

// class is the class of style of a trouble.
func (t trouble) class() string { return [...]string{"bad", "wait", "doubt", "good"}[t] }

// newView selects what a request asks for.
func newView(node string, l *look, asked url.Values) view {
	v := view{Node: plain(node), Query: plain(asked.Get("q")), State: asked.Get("state"), Version: l.version, Taken: moment{Machine: l.taken.UTC().Format(time.RFC3339), Clock: l.taken.UTC().Format(time.DateTime)}, All: len(l.rows), Style: markup.Own(style), Script: markup.Own(script)}
	if l.damaged != nil {
		v.Damaged = plain(l.damaged.Error())
	}
	v.count(l.rows)
	v.Waits = waits(l.rows)
	v.Servers = servers(l.rows, l.taken)
	for i, d := range l.drivers {
		d.Name, d.Version, d.Error, d.State = plain(d.Name), plain(d.Version), plain(d.Error), plain(d.State)
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
	v.Pods = pods(selected[first:last], l.taken)
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

// address is that of a page with these volumes.
func address(query, state string, number int) markup.Link {
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
	return markup.Link("./?" + values.Encode())
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

func number(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
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

// pods groups rows that are in the order of pods.
func pods(rows []volumemanager.VolumeStatus, now time.Time) []pod {
	var found []pod
	of := types.UID("")
	for i, r := range rows {
		if i == 0 || r.PodUID != of {
			of = r.PodUID
			p := pod{ID: "pod-" + string(of), Name: plain(r.Pod.String()), UID: plain(string(of))}
			if r.Pod.Name == "" {
				p.Name = "Of no known pod"
			}
			if !r.Wanted {
				p.Note = "is to go"
			}
			found = append(found, p)
		}
		p := &found[len(found)-1]
		p.Volumes = append(p.Volumes, newRow(r, now))
	}
	return found
}

func newRow(r volumemanager.VolumeStatus, now time.Time) row {
	out := row{ID: "volume-" + string(r.PodUID) + "/" + r.Volume, Name: plain(r.Volume), State: string(r.State), Class: troubleOf(r).class(), Source: plain(r.Source), Plugin: plain(strings.TrimPrefix(r.Plugin, "kubernetes.io/")), Since: newMoment(r.Since, now)}
	if r.State == volumemanager.StateUnused {
		out.Class = "none"
	}
	if r.Claim.Name != "" {
		out.Claim = plain(r.Claim.String())
	}
	if r.Err != nil {
		first, rest, _ := strings.Cut(r.Err.Error(), "\n")
		out.Text, out.Advice = plain(first), plain(rest)
		if e, ok := errors.AsType[interface {
			error
			Advice() string
		}](r.Err); ok && rest == "" {
			advice := e.Advice()
			if before, _, found := strings.Cut(first, "; "+advice); found && advice != "" {
				out.Text, out.Advice = plain(before), plain(advice)
			}
		}
	}
	out.Notes = notes(r, now)
	out.Explained = out.Text != "" || len(out.Notes) > 0
	return out
}

// notes say what a volume waits for, and when it is tried again.
func notes(r volumemanager.VolumeStatus, now time.Time) (found []string) {
	say := func(format string, args ...any) { found = append(found, plain(fmt.Sprintf(format, args...))) }
	if r.Operation != "" {
		text := fmt.Sprintf("%s under way for %s", r.Operation, span(now.Sub(r.Began)))
		if p := r.Progress; p != (volume.Progress{}) {
			text += fmt.Sprintf(": %s, %d", p.Doing, p.Done)
			if p.Total > 0 {
				text += fmt.Sprintf(" of %d", p.Total)
			}
		}
		say("%s", text)
	}
	if r.Attachment != nil && !sameText(r.Err, r.Attachment) {
		say("%v", r.Attachment)
	}
	if r.ServerTrouble() != "" && r.State != volumemanager.StateMounted {
		say("server %s has not answered since %s", r.Server.Source, newMoment(r.Server.Since, now).Clock)
	}
	if r.Condition != nil && r.Condition.Abnormal {
		say("its storage says: %s", r.Condition.Message)
	}
	if !r.NextRetry.IsZero() {
		say("next try at %s, after %s", newMoment(r.NextRetry, now).Clock, number(r.Failures, "failure"))
	}
	return found
}

func sameText(err error, attachment error) bool {
	return err != nil && strings.Contains(err.Error(), attachment.Error())
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

// servers are the servers of volumes, those without an answer first.
func servers(rows []volumemanager.VolumeStatus, now time.Time) []server {
	type known struct {
		health           volumesource.Health
		volumes, waiting int
	}
	found := make(map[string]*known)
	for _, r := range rows {
		h := r.Server
		if h.Source == "" {
			continue
		}
		s := found[h.Source]
		if s == nil {
			s = &known{health: h}
			found[h.Source] = s
		}
		s.volumes++
		if t := troubleOf(r); t == failing || t == pending {
			s.waiting++
		}
	}
	var all []server
	for name, known := range found {
		health := known.health
		s := server{ID: "server-" + name, Name: plain(name), State: "answers", Class: "good", Volumes: number(known.volumes, "volume"),
			Address: address(name, "", 1), Since: newMoment(health.Since, now)}
		if known.waiting > 0 {
			s.Volumes += fmt.Sprintf(", %d not mounted", known.waiting)
		}
		if !health.Answers {
			s.State, s.Class = "silent", "bad"
			s.Retry = newMoment(health.RetryAt, now).Clock
		}
		if health.Err != nil {
			s.Error = plain(health.Err.Error())
		}
		s.Explained = s.Error != "" || s.Retry != ""
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b server) int {
		return cmp.Or(strings.Compare(a.Class, b.Class), strings.Compare(a.Name, b.Name))
	})
	return all
}
