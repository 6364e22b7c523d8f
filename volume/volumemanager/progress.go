package volumemanager

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fsgroup"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

const (
	// progressAfter is how long a set-up may take before its pod gets an event
	// about how far it is, and progressEvery how often it gets another. The
	// kubelet says the same things after half a minute.
	progressAfter = 10 * time.Second
	progressEvery = time.Minute
	// progressShown is how often subscribers are told.
	progressShown = time.Second
)

// progress is how far one set-up is.
type progress struct {
	operator *operator
	setUp    *setUp
	patience *patience
	began    time.Time

	mu    sync.Mutex // also held while an event is sent, so that none comes after end
	last  volume.Progress
	shown time.Time
	told  bool
	ended bool
	timer *time.Timer // of the next event; nil while nothing was reported
}

func (o *operator) newProgress(u *setUp, waits *patience) *progress {
	return &progress{operator: o, setUp: u, patience: waits, began: time.Now()}
}

// report takes what a plugin says.
func (p *progress) report(now volume.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	other := now.Doing != p.last.Doing
	if now != p.last { // saying the same again is no progress
		p.patience.putOff()
	}
	p.last = now
	if p.timer == nil && p.operator.config.Events != nil {
		p.timer = time.AfterFunc(progressAfter-time.Since(p.began), p.tell)
	}
	if at := time.Now(); other || at.Sub(p.shown) >= progressShown {
		p.shown = at
		p.operator.showProgress(p.setUp.of, now)
	}
}

// end is called when the set-up has ended: nothing is said about it any more.
func (p *progress) end() {
	p.mu.Lock()
	p.ended = true
	if p.timer != nil {
		p.timer.Stop()
	}
	reported := !p.shown.IsZero()
	p.mu.Unlock()
	if !reported {
		return
	}
	p.operator.mu.Lock()
	defer p.operator.mu.Unlock()
	p.setUp.of.progress = nil
}

func (o *operator) showProgress(s *podVolume, now volume.Progress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.progress = &now
	o.publish(s)
}

// tell sends the events about a set-up that takes long.
func (p *progress) tell() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	reason, message := "VolumeSetUpInProgress", "Setting up volume %[1]s, for %[2]s so far: "+strings.ReplaceAll(p.last.String(), "%", "%%")+"."
	if p.last.Doing == fsgroup.Doing {
		reason, message = "VolumePermissionChangeInProgress", "Setting volume ownership for volume %[1]s, processed "+strconv.FormatInt(p.last.Done, 10)+" files in %[2]s."
		if !p.told && !onRootMismatch(p.setUp.pod) {
			message += " It is taking longer than expected, consider fsGroupChangePolicy OnRootMismatch."
		}
	}
	for _, name := range p.setUp.record.Volumes {
		p.operator.config.Events.Event(p.setUp.pod, v1.EventTypeWarning, reason,
			fmt.Sprintf(message, strconv.Quote(name), time.Since(p.began).Round(time.Second)))
	}
	p.told = true
	p.timer.Reset(progressEvery)
}

func onRootMismatch(pod *v1.Pod) bool {
	policy := mounterArgs(pod).FSGroupChangePolicy
	return policy != nil && *policy == v1.FSGroupChangeOnRootMismatch
}

// adviseGroups tells a pod with an fsGroup, when its volume is set up for the
// first time, that the volume's files do not belong to that: what a server
// exports is not given to groups by its clients (kubernetes issue 90123). Of
// what lies outside the root, a hostPath, nobody would expect it.
func (o *operator) adviseGroups(u *setUp) {
	args := mounterArgs(u.pod)
	if o.config.Events == nil || args.FsGroup == nil || u.mounter == nil || u.mounter.GetAttributes().Managed || !pathin.Strictly(rootdir.PodsDir(o.host.RootDir), u.record.Path) {
		return
	}
	for _, name := range u.record.Volumes {
		o.config.Events.Event(u.pod, v1.EventTypeNormal, "FSGroupNotApplied", fmt.Sprintf(
			"fsGroup %d is not applied to volume %q (%s): its files keep their groups. Let the pod have one of those in securityContext.supplementalGroups.",
			*args.FsGroup, name, u.record.Plugin))
	}
}

// patience is a context with a deadline that can be put off: a set-up that
// makes progress is not given up, however long it takes.
type patience struct {
	context.Context
	cancel context.CancelCauseFunc
	limit  time.Duration
	timer  *time.Timer

	mu       sync.Mutex
	deadline time.Time
}

func newPatience(parent context.Context, limit time.Duration) *patience {
	p := &patience{limit: limit, deadline: time.Now().Add(limit)}
	p.Context, p.cancel = context.WithCancelCause(parent)
	p.timer = time.AfterFunc(limit, func() { p.cancel(context.DeadlineExceeded) })
	return p
}

// putOff gives the whole time once more, from now on.
func (p *patience) putOff() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = time.Now().Add(p.limit)
	p.timer.Reset(p.limit)
}

// end frees what the context uses. It must not be put off afterwards.
func (p *patience) end() {
	p.timer.Stop()
	p.cancel(context.Canceled)
}

// Deadline is when the context ends, unless it is put off.
func (p *patience) Deadline() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deadline, true
}

// Err is [context.DeadlineExceeded] once the deadline has passed, as of other
// contexts that have one.
func (p *patience) Err() error {
	err := p.Context.Err()
	if err != nil && context.Cause(p.Context) == context.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	return err
}

// tellShortfalls tells a pod, when its volume is set up for the first time, what
// it asks for and does not get.
func (o *operator) tellShortfalls(u *setUp) {
	if o.config.Events == nil {
		return
	}
	plugin, err := o.plugins.FindPluginByName(u.record.Plugin)
	if err != nil {
		return // it has just set the volume up
	}
	for _, s := range volume.Shortfalls(plugin, u.record.Spec(), u.pod) {
		o.config.Events.Event(u.pod, v1.EventTypeNormal, s.Reason, s.Message)
	}
}
