package fields

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/podvol/podvol/examples/nodehttp/nodeevents"
)

// Subject is an object that events are about. Others have had its name before, or have it on
// another node.
type Subject struct {
	Kind, Namespace, Name string
	UID                   types.UID // empty: it is not known
	Since                 time.Time // when it was made; zero: it is not known
}

// has reports whether an event is about the object. The event of a deletion has no UID.
func (s Subject) has(e nodeevents.Event) bool {
	if e.Kind != s.Kind || e.Namespace != s.Namespace || e.Name != s.Name {
		return false
	}
	if e.UID == "" || s.UID == "" {
		return !e.Last.Before(s.Since)
	}
	return e.UID == s.UID
}

// Events is the field of an object's recent events, a line each, the latest one last.
func Events(all []nodeevents.Event, about Subject, now time.Time) Field {
	var lines []string
	for _, e := range all {
		if !about.has(e) {
			continue
		}
		times := ""
		if e.Count > 1 {
			times = fmt.Sprintf(", %d times", e.Count)
		}
		message := strings.Join(strings.Fields(e.Message), " ")
		lines = append(lines, fmt.Sprintf("%s ago%s, %s %s: %s", duration.HumanDuration(max(0, now.Sub(e.Last))), times, e.Type, e.Reason, message))
	}
	return Field{Name: "Events", Text: strings.Join(lines, "\n")}
}
