package fields

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/podvol/podvol/examples/nodehttp/nodeevents"
)

// Events is the field of an object's recent events, a line each, the latest one last.
func Events(all []nodeevents.Event, kind, namespace, name string, now time.Time) Field {
	var lines []string
	for _, e := range all {
		if e.Kind != kind || e.Namespace != namespace || e.Name != name {
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
