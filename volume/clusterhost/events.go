package clusterhost

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"

	"github.com/podvol/podvol/volume"
)

// maxQueuedEvents is how many events may wait for the recorder.
const maxQueuedEvents = 1000

// Events is a [volume.EventSink] over a recorder of client-go. It never blocks:
// a recorder that does has the events wait, and when 1000 do, the next ones are
// dropped. What an event is about is passed to the recorder as a full
// reference, with the kind and apiVersion that objects from the API do not carry.
type Events struct {
	recorder record.EventRecorder

	mu      sync.Mutex
	queue   []event
	running bool
	dropped int
}

type event struct {
	about                      *v1.ObjectReference
	eventType, reason, message string
}

var _ volume.EventSink = (*Events)(nil)

// NewEvents returns a sink that passes events on to recorder, in order. The
// recorder stays the caller's.
func NewEvents(recorder record.EventRecorder) *Events { return &Events{recorder: recorder} }

// Event implements [volume.EventSink].
func (e *Events) Event(pod *v1.Pod, eventType, reason, message string) {
	e.Objects().Event(pod, eventType, reason, message)
}

// Dropped returns how many events were dropped so far, because the recorder did
// not take them or because they were about no object of the API.
func (e *Events) Dropped() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dropped
}

// Objects returns the same sink for events about claims, PersistentVolumes and
// all other objects: the EventRecorder of a persistentvolume.Controller.
func (e *Events) Objects() ObjectEvents { return ObjectEvents{e} }

// ObjectEvents takes events about any object of the API.
type ObjectEvents struct{ events *Events }

// Event reports something about an object, which is only read; eventType is
// v1.EventTypeNormal or v1.EventTypeWarning, reason one word.
func (o ObjectEvents) Event(object runtime.Object, eventType, reason, message string) {
	about, err := reference.GetReference(scheme.Scheme, object)
	o.events.put(event{about, eventType, reason, message}, err == nil)
}

// put queues an event, or drops it.
func (e *Events) put(next event, valid bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !valid || len(e.queue) >= maxQueuedEvents {
		e.dropped++
		return
	}
	e.queue = append(e.queue, next)
	if !e.running {
		e.running = true
		go e.deliver()
	}
}

// deliver passes queued events on, and ends when there are none.
func (e *Events) deliver() {
	for {
		next, ok := e.take()
		if !ok {
			return
		}
		e.recorder.Event(next.about, next.eventType, next.reason, next.message)
	}
}

func (e *Events) take() (event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == 0 {
		e.queue, e.running = nil, false
		return event{}, false
	}
	next := e.queue[0]
	e.queue = e.queue[1:]
	return next, true
}
