// Package nodeevents keeps the recent events of a node in memory: what happened to its pods'
// volumes, to claims and to PersistentVolumes, as kubectl get events shows for a cluster.
package nodeevents

import (
	"cmp"
	"container/list"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// Event is something that happened to an object, once or more often. It holds no secrets, as its
// sources do not. Its keys in JSON are part of what a node serves.
type Event struct {
	Kind      string    `json:"kind"` // Pod, PersistentVolumeClaim or PersistentVolume
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid,omitempty"`
	Type      string    `json:"type"` // v1.EventTypeNormal or v1.EventTypeWarning
	Reason    string    `json:"reason"`
	Message   string    `json:"message"`
	// Count is how often it happened, with this message.
	Count int       `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// IsWarning reports whether a person should know of it.
func (e Event) IsWarning() bool { return e.Type == v1.EventTypeWarning }

// What a ring keeps. Each kind has these bounds for itself, so that a server that is down, with its
// thousands of pods, drives out no event of a claim.
const (
	maxEvents  = 500
	maxBytes   = 256 << 10
	perObject  = 16   // so that one object does not drive out the others
	maxMessage = 1024 // bytes
)

// Ring keeps the recent events. Its methods may be called concurrently. The zero value is ready.
type Ring struct {
	// Changed is called after each event, and must not block; nil: nothing is.
	Changed func()

	mu    sync.Mutex
	kinds map[string]*kind
}

// kind is the events of one kind of objects, in the order of arrival.
type kind struct {
	events *list.List // of *Event
	of     map[object][]*list.Element
	bytes  int
	// evicted is the time of the latest event that was evicted.
	evicted time.Time
}

type object struct {
	namespace, name string
	uid             types.UID
}

func (e *Event) object() object { return object{e.Namespace, e.Name, e.UID} }

func (e *Event) bytes() int {
	return len(e.Namespace) + len(e.Name) + len(e.UID) + len(e.Reason) + len(e.Message)
}

// All returns the events, the oldest first.
func (r *Ring) All() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []Event{}
	for _, k := range r.kinds {
		for at := k.events.Front(); at != nil; at = at.Next() {
			all = append(all, *at.Value.(*Event))
		}
	}
	slices.SortStableFunc(all, func(a, b Event) int {
		return cmp.Or(a.Last.Compare(b.Last), cmp.Compare(a.Kind, b.Kind))
	})
	return all
}

// Pods keeps the events about pods and passes them on to next, unless that is nil.
func (r *Ring) Pods(next volume.EventSink) volume.EventSink { return podEvents{r, next} }

type podEvents struct {
	ring *Ring
	next volume.EventSink
}

// Event implements volume.EventSink.
func (p podEvents) Event(pod *v1.Pod, eventType, reason, message string) {
	p.ring.tell(pod, eventType, reason, message)
	if p.next != nil {
		p.next.Event(pod, eventType, reason, message)
	}
}

// Storage keeps the events about claims and PersistentVolumes and passes them on to next, unless
// that is nil.
func (r *Ring) Storage(next persistentvolume.EventRecorder) persistentvolume.EventRecorder {
	return storageEvents{r, next}
}

type storageEvents struct {
	ring *Ring
	next persistentvolume.EventRecorder
}

// Event implements persistentvolume.EventRecorder.
func (s storageEvents) Event(object runtime.Object, eventType, reason, message string) {
	if about, ok := object.(metav1.Object); ok {
		s.ring.tell(about, eventType, reason, message)
	}
	if s.next != nil {
		s.next.Event(object, eventType, reason, message)
	}
}

// tell adds an event that has happened now.
func (r *Ring) tell(about metav1.Object, eventType, reason, message string) {
	now := time.Now()
	e := &Event{Kind: kindOf(about), Namespace: about.GetNamespace(), Name: about.GetName(), UID: about.GetUID(),
		Type: eventType, Reason: reason, Message: short(message), Count: 1, First: now, Last: now}
	r.mu.Lock()
	k := r.kind(e.Kind)
	if !k.repeat(e) {
		k.add(e)
	}
	r.mu.Unlock()
	r.changed()
}

// once adds an event that may have been added before, and drops it where that was and it has been
// evicted since: then it is older than all that are kept.
func (r *Ring) once(e *Event) {
	e.Message, e.Count, e.First = short(e.Message), 1, e.Last
	r.mu.Lock()
	k := r.kind(e.Kind)
	known := !k.evicted.IsZero() && !e.Last.After(k.evicted)
	own := k.of[e.object()]
	for _, at := range own {
		before := at.Value.(*Event)
		known = known || before.Reason == e.Reason && before.First.Equal(e.First)
	}
	known = known || len(own) == perObject && e.Last.Before(own[0].Value.(*Event).Last)
	if !known {
		k.add(e)
	}
	r.mu.Unlock()
	if !known {
		r.changed()
	}
}

func (r *Ring) changed() {
	if r.Changed != nil {
		r.Changed()
	}
}

func (r *Ring) kind(name string) *kind {
	k := r.kinds[name]
	if k == nil {
		if r.kinds == nil {
			r.kinds = make(map[string]*kind)
		}
		k = &kind{events: list.New(), of: make(map[object][]*list.Element)}
		r.kinds[name] = k
	}
	return k
}

// repeat counts an event again that is kept, and makes it the latest.
func (k *kind) repeat(e *Event) bool {
	own := k.of[e.object()]
	for i, at := range own {
		before := at.Value.(*Event)
		if before.Type != e.Type || before.Reason != e.Reason || before.Message != e.Message {
			continue
		}
		before.Count++
		before.Last = e.Last
		k.events.MoveToBack(at)
		copy(own[i:], own[i+1:])
		own[len(own)-1] = at
		return true
	}
	return false
}

// add adds an event, and evicts those that there is no room for any more.
func (k *kind) add(e *Event) {
	if own := k.of[e.object()]; len(own) == perObject {
		k.remove(own[0])
	}
	k.of[e.object()] = append(k.of[e.object()], k.events.PushBack(e))
	k.bytes += e.bytes()
	for k.events.Len() > maxEvents || k.bytes > maxBytes {
		oldest := k.events.Front()
		if last := oldest.Value.(*Event).Last; last.After(k.evicted) {
			k.evicted = last
		}
		k.remove(oldest)
	}
}

func (k *kind) remove(at *list.Element) {
	e := k.events.Remove(at).(*Event)
	k.bytes -= e.bytes()
	own := slices.DeleteFunc(k.of[e.object()], func(other *list.Element) bool { return other == at })
	if len(own) == 0 {
		delete(k.of, e.object())
		return
	}
	k.of[e.object()] = own
}

// kindOf is the kind of an object, which typed objects of an API client do not carry.
func kindOf(about metav1.Object) string {
	switch o := about.(type) {
	case *v1.Pod:
		return "Pod"
	case *v1.PersistentVolumeClaim:
		return kindClaim
	case *v1.PersistentVolume:
		return kindVolume
	case runtime.Object:
		return o.GetObjectKind().GroupVersionKind().Kind
	}
	return ""
}

// short is the beginning of a message that is too long.
func short(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	end := maxMessage
	for end > 0 && !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "…"
}
