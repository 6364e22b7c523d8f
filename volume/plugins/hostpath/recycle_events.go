package hostpath

import (
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// eventGate passes events on while there is a listener.
type eventGate struct {
	mu     sync.Mutex
	record volume.RecycleEventRecorder
}

// to names the listener; nil: none. An event that is being told is told first.
func (g *eventGate) to(record volume.RecycleEventRecorder) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.record = record
}

func (g *eventGate) tell(eventType, message string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.record != nil {
		g.record(eventType, message)
	}
}

func (g *eventGate) normal(format string, args ...any) {
	g.tell(v1.EventTypeNormal, fmt.Sprintf(format, args...))
}
