// Package eventlog tells the controller's listener of events. An event about a state is sent
// once as long as the state lasts, however often its object is synced.
package eventlog

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Log passes events on. Its methods may be called concurrently.
type Log struct {
	sink Sink

	mu   sync.Mutex
	told map[types.UID]string
}

// Sink takes the events.
type Sink interface {
	Event(object runtime.Object, eventType, reason, message string)
}

// New returns a log that has told nothing. If sink is nil, there is no listener.
func New(sink Sink) *Log { return &Log{sink: sink, told: make(map[types.UID]string)} }

// Object is an object that events may be about.
type Object interface {
	runtime.Object
	GetUID() types.UID
}

// Event tells of something that took place just now.
func (l *Log) Event(object runtime.Object, eventType, reason, message string) {
	if l.sink != nil {
		l.sink.Event(object, eventType, reason, message)
	}
}

// EventOnce tells of the state that an object is in, once until it is in another. Details
// that others change all the time make no other state.
func (l *Log) EventOnce(object Object, eventType, reason, message, details string) {
	l.EventOnceFor(object.GetUID(), object, eventType, reason, message, details)
}

// EventOnceFor is [Log.EventOnce] for a state of a name of its own.
func (l *Log) EventOnceFor(name types.UID, object Object, eventType, reason, message, details string) {
	l.mu.Lock()
	state := reason + "\x00" + message
	known := l.told[name] == state
	l.told[name] = state
	l.mu.Unlock()
	if !known {
		if details != "" {
			message += ": " + details
		}
		l.Event(object, eventType, reason, message)
	}
}

// reasonPluginSlow is podvol's own.
const reasonPluginSlow = "VolumePluginSlow"

// PluginSlow tells, once, of a plugin that does not answer; nil: it does.
func (l *Log) PluginSlow(object Object, slow error) {
	if slow != nil {
		l.EventOnceFor(SlowState(object), object, v1.EventTypeWarning, reasonPluginSlow, slow.Error(), "")
	}
}

// SlowState names the state of [Log.PluginSlow].
func SlowState(object Object) types.UID { return object.GetUID() + "/slow" }

// Forget says that an object is in no state to tell of.
func (l *Log) Forget(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.told, uid)
}
