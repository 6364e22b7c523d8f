package fakehost

import (
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Event is an event that was reported about a pod.
type Event struct {
	Pod                   types.NamespacedName
	PodUID                types.UID
	Type, Reason, Message string
}

// RecordedEvents returns a copy of all events, oldest first.
func (h *Host) RecordedEvents() []Event {
	h.events.mu.Lock()
	defer h.events.mu.Unlock()
	return slices.Clone(h.events.events)
}

type eventLog struct {
	mu     sync.Mutex
	events []Event
}

// Event implements [volume.EventSink].
func (l *eventLog) Event(pod *v1.Pod, eventType, reason, message string) {
	e := Event{
		Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, PodUID: pod.UID,
		Type: eventType, Reason: reason, Message: message,
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}
