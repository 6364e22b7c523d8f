package volumemanager

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// admission decides whether a volume may be set up here now. It is asked by one call, admit.
type admission struct {
	entries *entries
	actual  *actualStateOfWorld
	status  *publisher
	host    *volume.Host
	needs   *nodeNeeds
}

// admit finds out what a volume needs of its node, refuses what would hide or
// replace a volume that is there already, or take one that others have, and else enters the new
// one. The set-up has the record then as it is to be stored, and the state known before, which is
// empty for a new volume.
func (a *admission) admit(ctx context.Context, u *setUp) error {
	err := a.needs.find(ctx, u)
	a.show(u)
	if err != nil {
		return err
	}
	u.record.Detached = a.detachment(u.of)
	if u.line, err = mountrecord.Encode(u.record); err != nil {
		return err
	}
	u.digest = rootdir.DigestOf(u.line)
	if u.before, err = a.enter(u); err != nil || u.before.exists() {
		return err
	}
	if u.newPod = !rootdir.HasPod(a.host.RootDir, u.key.PodUID); u.newPod {
		return nil
	}
	if err := a.refuseUnrecorded(u.key); err != nil {
		a.actual.set(u.of, u.before)
		return volume.NothingDone(err)
	}
	return nil
}

// show puts what was found about the volume so far into its rows, and notes what it uses of its
// node.
func (a *admission) show(u *setUp) {
	a.entries.Lock()
	defer a.entries.Unlock()
	a.needs.join(u)
	a.status.show(u.of, u.record)
}

// detachment is the note that a volume was detached lazily; nil: none.
// Until the volume is mounted again, whatever fails meanwhile, it must not be
// forgotten that its file system may be in use.
func (a *admission) detachment(s *podVolume) *lazyunmount.Detachment {
	if was := a.actual.of(s); was.record != nil {
		return was.record.Detached
	}
	return nil
}

// enter makes the volume a part of the actual state, unless there is something against it.
func (a *admission) enter(u *setUp) (before actualVolume, err error) {
	a.entries.Lock()
	defer a.entries.Unlock()
	a.takeOver(u)
	before = u.of.actual
	if err := u.checkPlace(before); err != nil {
		return before, err
	}
	if err := a.needs.check(u); err != nil {
		return before, err
	}
	entered := actualVolume{key: u.key, record: u.record, digest: u.digest, source: u.source, device: cmp.Or(u.device, before.device), detached: before.detached}
	if before.digest == u.digest && before.record != nil {
		entered.record = before.record // which may be confirmed
	}
	u.of.actual = entered
	a.status.note(u.of)
	return before, nil
}

// checkPlace refuses a volume where another one is, of this entry or of another of the pod.
func (u *setUp) checkPlace(before actualVolume) error {
	if before.unreadable != nil {
		return volume.NothingDone(before.unreadable)
	}
	if before.record != nil && !u.continues(before) {
		return u.replaces(before, u.record.Volumes[0])
	}
	for _, other := range u.of.pod.volumes {
		if other == u.of || !other.actual.exists() {
			continue
		}
		if name := other.mountedAs(u.record.Volumes); name != "" && other.actual.key != u.key {
			return u.replaces(other.actual, name)
		}
		if other.actual.key != u.key {
			continue
		}
		if other.actual.unreadable != nil {
			return volume.NothingDone(other.actual.unreadable)
		}
		return u.replaces(other.actual, u.record.Volumes[0])
	}
	return nil
}

// takeOver moves a directory that was found on disk, under the name of its spec,
// to the volume that turns out to want it, and puts aside one that only has the
// name of what it wants.
func (a *admission) takeOver(u *setUp) {
	if is := u.of.actual; is.isFound() && is.key != u.key {
		a.putAside(u.of)
	}
	if u.of.actual.exists() {
		return
	}
	for _, other := range u.of.pod.volumes {
		r := other.actual.record
		if other == u.of || other.wanted || other.doing != opNone || r == nil || !r.Rebuilt || other.actual.key != u.key {
			continue
		}
		a.needs.pass(other, u.of)
		u.of.actual, other.actual = other.actual, actualVolume{}
		a.status.note(u.of)
		u.of.state, u.of.since, u.of.took = other.state, other.since, other.took
		if slices.ContainsFunc(other.pod.volumes, func(s *podVolume) bool { return s != other && slices.Contains(s.names, other.names[0]) }) {
			other.state = StateUnmounted // of which no subscriber is told: the pod has a volume of that name
		}
		if other.unused {
			a.actual.rest(other)
			return
		}
		a.actual.drop(other)
		return
	}
}

// continues reports whether the set-up is of the volume that is there.
func (u *setUp) continues(before actualVolume) bool {
	r := before.record
	if before.key != u.key {
		return false
	}
	if r.Spec().IsBlock() != u.record.Spec().IsBlock() {
		return false
	}
	if r.Rebuilt {
		return r.Guessed || before.source == u.source
	}
	return before.source == u.source && (r.PersistentVolume == nil) == (u.record.PersistentVolume == nil)
}

// mountedAs returns the first of the pod's volumes whose mount is here although
// another source is desired for it; empty: none.
func (s *podVolume) mountedAs(names []string) string {
	r := s.actual.record
	if r == nil || r.Rebuilt || !s.isLeft() {
		return ""
	}
	if i := slices.IndexFunc(names, func(name string) bool { return slices.Contains(r.Volumes, name) }); i >= 0 {
		return names[i]
	}
	return ""
}

func (u *setUp) replaces(before actualVolume, name string) error {
	return volume.NothingDone(sourceReplaced(name, describe(before.record), describe(u.record)))
}

func describe(r *mountrecord.Record) string { return r.Plugin + " " + r.Source }

// sourceReplaced says that a pod's volume is mounted from another source than is now
// asked for. Its containers may be using it, so it is left alone.
func sourceReplaced(name, was, is string) error {
	return &volume.Failure{
		Cause: ErrReplaced, Subject: name,
		What: fmt.Sprintf("volume %q is mounted from %s, but %s is asked for", name, was, is),
		Next: "tear the pod down first",
	}
}

// unrecorded says that a volume was not set up because there is one at its place
// that podvol has no record of: another agent may have made it, such as a kubelet
// that runs the same pod. Podvol's later tear-down would delete its data. Nothing
// was done.
func unrecorded(path, found string) error {
	return &volume.Failure{
		Cause: ErrNoRecord, Subject: path,
		What: fmt.Sprintf("at %s there is %s, and no record says that podvol made it; it is left alone", path, found),
		Next: "if another agent uses this root directory, choose one of your own; if none does, have it adopted first: Config.Adopt, or podvol fsck --repair --adopt",
	}
}

// refuseUnrecorded fails where something is at the place of a new volume that
// could be lost with it. Records come before directories and go after them, so
// whatever crashed, podvol's own have one; a file of records that was lost or
// cut is no reason to take another agent's data for its own. An empty directory
// without a mount is no loss.
func (a *admission) refuseUnrecorded(key rootdir.Key) error {
	dir := a.host.GetPodVolumeDir(key.PodUID, key.Plugin, key.Spec)
	if rootdir.HasDeviceLink(a.host, key) {
		return unrecorded(rootdir.DeviceLink(a.host, key), "a link to a device")
	}
	found, err := rootdir.FoundAt(a.host, key)
	if err != nil || found == "" {
		return err
	}
	return unrecorded(dir, found)
}

// putAside gives a volume found on disk an entry of its own where the pod's
// volume of that name turns out to be another one. The caller holds the lock.
func (a *admission) putAside(s *podVolume) {
	own := &podVolume{pod: s.pod, names: []string{s.actual.key.Spec}, since: s.since, actual: s.actual, state: s.state}
	if u := own.actual.unreadable; u != nil {
		own.state, own.err = StateFailed, u
	}
	s.pod.volumes = append(s.pod.volumes, own)
	a.needs.pass(s, own)
	s.actual, s.state, s.since = actualVolume{}, StatePending, time.Now()
	a.status.note(s)
	a.status.note(own)
}
