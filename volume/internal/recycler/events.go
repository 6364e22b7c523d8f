package recycler

import (
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// Events passes events on while there is a listener. Its zero value has none. Its
// methods may be called at the same time.
type Events struct {
	mu     sync.Mutex
	record volume.RecycleEventRecorder
}

// To names the listener; nil: none. An event that is being told is told first.
func (e *Events) To(record volume.RecycleEventRecorder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.record = record
}

// Tell tells an event. It is a [volume.RecycleEventRecorder].
func (e *Events) Tell(eventType, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.record != nil {
		e.record(eventType, message)
	}
}

// Normal tells a formatted event of type Normal.
func (e *Events) Normal(format string, args ...any) {
	e.Tell(v1.EventTypeNormal, fmt.Sprintf(format, args...))
}
