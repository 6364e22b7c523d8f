package explain

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/podvol/podvol/examples/podvol/internal/fields"
	"github.com/podvol/podvol/examples/podvol/internal/nodeserver"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
)

// textOf is a pod with its volumes, of which there is one at least.
func textOf(all []Explanation, now time.Time) []fields.Field {
	knownBy := nodeserver.KnownBy(all[0].unanswered)
	if all[0].unanswered != nil {
		knownBy += ", so what is wanted and what is under way is not known"
	}
	text := []fields.Field{
		{Name: "Pod", Text: cmp.Or(strings.TrimPrefix(all[0].Namespace+"/"+all[0].Pod, "/"), "not known")},
		{Name: "UID", Text: all[0].PodUID},
		{Name: "Node", Text: all[0].Node},
		{Name: "Known by", Text: knownBy},
		{Name: "Manifest", Text: refusedText(all[0].Refused, now)},
	}
	for _, e := range all {
		text = append(text, fields.Field{Name: "Volume " + e.Volume.Volume, Of: e.fields(now)})
	}
	return text
}

// refusedText says why the newer version of a manifest is refused.
func refusedText(m *nodeserver.RefusedManifest, now time.Time) string {
	if m == nil {
		return ""
	}
	return fmt.Sprintf("its newer version is refused since %s: %s", fields.Since(m.Since, now), m.Reason)
}

func (e Explanation) fields(now time.Time) []fields.Field {
	wanted, under := "", ""
	if e.KnownBy == nodeserver.ByNode {
		wanted, under = e.wanted(), e.underWay(now)
	}
	return []fields.Field{
		{Name: "Wanted", Text: wanted},
		{Name: "State", Text: e.state(now)},
		{Name: "Under way", Text: under},
		{Name: "Waits for", Text: e.WaitsFor},
		{Name: "Error", Text: e.errorText()},
		{Name: "Cause", Text: strings.TrimPrefix(e.Cause, "Unknown")},
		{Name: "Advice", Text: e.Advice},
		{Name: "Next attempt", Text: e.nextAttempt(now)},
		{Name: "Plugin", Text: cmp.Or(e.Plugin, "none found yet")},
		{Name: "Source", Text: e.Source},
		{Name: "Claim", Text: e.Claim},
		{Name: "PersistentVolume", Text: e.PersistentVolume},
		{Name: "Path", Text: e.Path},
		{Name: "Device", Text: e.Device},
		{Name: "Mounted", Text: e.mounted()},
		{Name: "Record", Text: e.Record},
		{Name: "Also used by", Text: strings.Join(e.AlsoUsedBy, "\n")},
		{Name: "Server", Text: e.server(now)},
		{Name: "Driver", Text: e.driver()},
		{Name: "Attachment", Text: e.Attachment},
		{Name: "Condition", Text: e.Condition},
	}
}

func (e Explanation) wanted() string {
	if e.Wanted {
		return "yes, its pod is declared with it"
	}
	if e.KeptBecause != "" {
		return e.KeptBecause
	}
	return "no, it is torn down once the pod's containers are gone"
}

func (e Explanation) state(now time.Time) string {
	text := cmp.Or(e.State, "not known")
	if e.State == "not used" {
		text += ": no container of the pod mounts it"
	}
	if since := fields.Since(e.Since, now); since != "" {
		text += " since " + since
	}
	if took := time.Duration(e.DurationSeconds * float64(time.Second)).Round(100 * time.Microsecond); took > 0 {
		text += fmt.Sprintf(", the last operation took %s", took)
	}
	return text
}

func (e Explanation) underWay(now time.Time) string {
	return cmp.Or(rows.UnderWay(e.Volume, now), "nothing")
}

// errorText leaves out the advice, which stands by itself.
func (e Explanation) errorText() string {
	text := strings.TrimRight(strings.TrimSuffix(e.Error, e.Advice), "\n; ")
	if e.Uncertain && text != "" {
		text += "\n(it may have left something behind)"
	}
	return text
}

func (e Explanation) nextAttempt(now time.Time) string {
	after := ""
	switch e.Failures {
	case 0:
	case 1:
		after = "after one failure"
	default:
		after = fmt.Sprintf("after %d failures", e.Failures)
	}
	switch wait := e.NextRetry.Sub(now); {
	case e.NextRetry.IsZero() && after == "":
		return ""
	case e.NextRetry.IsZero():
		return "once what it depends on changes, " + after
	case wait <= 0:
		return strings.TrimSpace("now " + after)
	default:
		return strings.TrimSpace(fmt.Sprintf("in %s %s", wait.Round(time.Second/10), after))
	}
}

func (e Explanation) mounted() string {
	switch {
	case e.Mount != nil:
		return fmt.Sprintf("%s from %s, %s; file system %s", e.Mount.FSType, e.Mount.Source, strings.Join(e.Mount.Options, ","), strings.Join(e.Mount.SuperOptions, ","))
	case e.State == "mounted" && e.Device == "":
		return "nothing at its path itself: it is a directory of the file system there"
	}
	return ""
}

func (e Explanation) server(now time.Time) string {
	s := e.Volume.Server
	if s == nil {
		return ""
	}
	text := s.Name + " answers again"
	if !s.Answers {
		text = s.Name + " has not answered since " + fields.Since(s.Since, now)
	}
	if s.Failures > 0 {
		text += fmt.Sprintf(", %d failures", s.Failures)
	}
	if wait := s.RetryAt.Sub(now); wait > 0 {
		text += fmt.Sprintf("; it is tried again in %s", wait.Round(time.Second/10))
	}
	if s.Error != "" {
		text += "\n" + s.Error
	}
	return text
}

func (e Explanation) driver() string {
	d := e.Driver
	if d == nil {
		return ""
	}
	text := strings.TrimSpace(d.Driver+" "+d.Version) + " at " + d.Socket + ": " + d.State
	for _, c := range d.Calls {
		text += fmt.Sprintf("\n%s is under way for %s", c.Method, duration.HumanDuration(time.Duration(c.Seconds*float64(time.Second))))
	}
	if d.Error != "" {
		text += "\n" + d.Error
	}
	return text
}
