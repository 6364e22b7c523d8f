package volumemanager

import (
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
	manager  *Manager
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

func (m *Manager) newProgress(u *setUp, waits *patience) *progress {
	return &progress{manager: m, setUp: u, patience: waits, began: time.Now()}
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
	if p.timer == nil && p.manager.config.Events != nil {
		p.timer = time.AfterFunc(progressAfter-time.Since(p.began), p.tell)
	}
	if at := time.Now(); other || at.Sub(p.shown) >= progressShown {
		p.shown = at
		p.manager.showProgress(p.setUp.of, now)
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
	p.manager.mu.Lock()
	defer p.manager.mu.Unlock()
	p.setUp.of.progress = nil
}

func (m *Manager) showProgress(s *podVolume, now volume.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s.progress = &now
	m.publish(s)
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
		p.manager.config.Events.Event(p.setUp.pod, v1.EventTypeWarning, reason,
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
func (m *Manager) adviseGroups(u *setUp) {
	args := mounterArgs(u.pod)
	if m.config.Events == nil || args.FsGroup == nil || u.mounter == nil || u.mounter.GetAttributes().Managed || !pathin.Strictly(rootdir.PodsDir(m.host.RootDir), u.record.Path) {
		return
	}
	for _, name := range u.record.Volumes {
		m.config.Events.Event(u.pod, v1.EventTypeNormal, "FSGroupNotApplied", fmt.Sprintf(
			"fsGroup %d is not applied to volume %q (%s): its files keep their groups. Let the pod have one of those in securityContext.supplementalGroups.",
			*args.FsGroup, name, u.record.Plugin))
	}
}
