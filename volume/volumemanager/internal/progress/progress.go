// Package progress tells how far the set-up of a volume is: subscribers every second, the pod
// by an event when it takes long. A set-up that makes progress is not given up: its
// [Patience] begins anew.
package progress

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/deadline"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fsgroup"
)

const (
	// eventAfter is how long a set-up may take before its pod gets an event
	// about how far it is, and eventEvery how often it gets another. The
	// kubelet says the same things after half a minute.
	eventAfter = 10 * time.Second
	eventEvery = time.Minute
	// shownEvery is how often Show is called.
	shownEvery = time.Second
)

// Config is what a [Reporter] is made of.
type Config struct {
	Pod      *v1.Pod
	Volumes  []string         // their names in the pod
	Events   volume.EventSink // nil: none
	Patience *Patience
	// Show is called with the newest progress.
	Show func(volume.Progress)
}

// Reporter takes what a plugin says of one set-up. Its methods may be called from several
// goroutines.
type Reporter struct {
	Config
	began time.Time

	mu    sync.Mutex // also held while an event is sent, so that none comes after End
	last  volume.Progress
	shown time.Time
	told  bool
	ended bool
	timer *time.Timer // of the next event; nil while nothing was reported
}

// Begin returns the reporter of a set-up that begins now.
func Begin(config Config) *Reporter { return &Reporter{Config: config, began: time.Now()} }

// Report takes what a plugin says.
func (r *Reporter) Report(now volume.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	other := now.Doing != r.last.Doing
	if now != r.last { // saying the same again is no progress
		r.Patience.PutOff()
	}
	r.last = now
	if r.timer == nil && r.Events != nil {
		r.timer = time.AfterFunc(eventAfter-time.Since(r.began), r.tell)
	}
	if at := time.Now(); other || at.Sub(r.shown) >= shownEvery {
		r.shown = at
		r.Show(now)
	}
}

// End is called when the set-up has ended: nothing is said about it any more. It reports
// whether Show was called.
func (r *Reporter) End() (shown bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.timer != nil {
		r.timer.Stop()
	}
	return !r.shown.IsZero()
}

// tell sends the events about a set-up that takes long.
func (r *Reporter) tell() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	reason, message := "VolumeSetUpInProgress", "Setting up volume %[1]s, for %[2]s so far: "+strings.ReplaceAll(r.last.String(), "%", "%%")+"."
	if r.last.Doing == fsgroup.Doing {
		reason, message = "VolumePermissionChangeInProgress", "Setting volume ownership for volume %[1]s, processed "+strconv.FormatInt(r.last.Done, 10)+" files in %[2]s."
		if !r.told && !isOnRootMismatch(r.Pod) {
			message += " It is taking longer than expected, consider fsGroupChangePolicy OnRootMismatch."
		}
	}
	for _, name := range r.Volumes {
		r.Events.Event(r.Pod, v1.EventTypeWarning, reason, fmt.Sprintf(message, strconv.Quote(name), time.Since(r.began).Round(time.Second)))
	}
	r.told = true
	r.timer.Reset(eventEvery)
}

func isOnRootMismatch(pod *v1.Pod) bool {
	sc := pod.Spec.SecurityContext
	return sc != nil && sc.FSGroupChangePolicy != nil && *sc.FSGroupChangePolicy == v1.FSGroupChangeOnRootMismatch
}

// Patience is a context that ends after a time that can be put off: a set-up that makes
// progress is not given up, however long it takes. So it has no Deadline, which must not
// change: a context with a limit of its own that is derived from it would lose that, where
// the Deadline comes sooner and is put off then. [deadline.Of] says when it ends as things
// are.
//
// It ends with its parent at once. Contexts that were derived from it follow a moment later.
type Patience struct {
	parent context.Context
	// inner ends when this does, at the end of the time by cancel.
	inner  context.Context
	cancel context.CancelCauseFunc
	limit  time.Duration
	timer  *time.Timer

	mu   sync.Mutex
	ends time.Time
}

// NewPatience returns a context that ends after the limit, or with its parent.
func NewPatience(parent context.Context, limit time.Duration) *Patience {
	p := &Patience{limit: limit, ends: time.Now().Add(limit)}
	p.parent = deadline.With(parent, p.end)
	p.inner, p.cancel = context.WithCancelCause(p.parent)
	p.timer = time.AfterFunc(limit, func() { p.cancel(context.DeadlineExceeded) })
	return p
}

func (p *Patience) end() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ends
}

// PutOff gives the whole time once more, from now on.
func (p *Patience) PutOff() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends = time.Now().Add(p.limit)
	p.timer.Reset(p.limit)
}

// End frees what the context uses. It must not be put off afterwards.
func (p *Patience) End() {
	p.timer.Stop()
	p.cancel(context.Canceled)
}

// Deadline is that of the parent.
func (p *Patience) Deadline() (time.Time, bool) { return p.parent.Deadline() }

// Done is closed when the context has ended.
func (p *Patience) Done() <-chan struct{} { return p.inner.Done() }

// Err is [context.DeadlineExceeded] once the time is over, as of contexts with a
// deadline. Contexts that are derived from it have the same error.
func (p *Patience) Err() error {
	err := p.inner.Err()
	if err != nil && context.Cause(p.inner) == context.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	return err
}

// Value returns the parent's value, also for [deadline.Of]. With the values of inner, a derived
// context would find inner, and take its error.
func (p *Patience) Value(key any) any { return p.parent.Value(key) }
