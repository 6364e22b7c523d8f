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
	"github.com/podvol/podvol/volume/selinux"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/oncepod"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// admission decides whether a volume may be set up here now. It is asked by one call, admit, and
// brings what else the volume needs of its node by another, stage. Both do little for a volume
// without a device, without an SELinux label, and that several pods may have.
type admission struct {
	entries *entries
	actual  *actualStateOfWorld
	status  *publisher
	host    *volume.Host
	devices *devices.Table
	selinux selinux.Policy
}

// admit finds out which device and which label a volume needs, refuses what would hide or
// replace a volume that is there already, or take one that others have, and else enters the new
// one. The set-up has the record then as it is to be stored, and the state known before, which is
// empty for a new volume.
func (a *admission) admit(ctx context.Context, u *setUp) error {
	err := a.findNeeds(ctx, u)
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
	if err := a.refuseUnrecorded(u.key); err != nil {
		a.actual.set(u.of, u.before)
		return volume.NothingDone(err)
	}
	return nil
}

// findNeeds finds out which device and which label the volume needs. With an error the device
// is what it may need, as far as that can be said.
func (a *admission) findNeeds(ctx context.Context, u *setUp) (err error) {
	if u.device, err = devices.Of(u.plugin, u.spec, u.pod.UID); err != nil {
		return err
	}
	u.record.SELinuxLabel, err = a.label(ctx, u)
	return err
}

// label is the label that the volume is asked to be mounted with. One that is
// mounted keeps its own, since another needs another mount.
func (a *admission) label(ctx context.Context, u *setUp) (string, error) {
	if label, mounted := a.mountedLabel(u); mounted {
		return label, nil
	}
	return a.selinux.MountLabel(ctx, u.pod, u.record.Volumes, u.plugin, u.spec)
}

func (a *admission) mountedLabel(u *setUp) (label string, mounted bool) {
	a.entries.Lock()
	defer a.entries.Unlock()
	for _, s := range u.of.pod.volumes { // one that was adopted has another entry
		if s.state == StateMounted && s.actual.record != nil && s.actual.key == u.key {
			return s.actual.record.SELinuxLabel, true
		}
	}
	return "", false
}

// show puts the findings into the volume's rows, and the device among those in use.
func (a *admission) show(u *setUp) {
	a.entries.Lock()
	defer a.entries.Unlock()
	a.devices.Join(u.of, u.device)
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

// stage makes sure that the volume's device is there and mounted, if it has one.
func (a *admission) stage(ctx context.Context, u *setUp) error {
	return a.devices.Stage(ctx, u.deviceRequest())
}

// deviceRequest is what the set-up asks of the volume's device.
func (u *setUp) deviceRequest() devices.Request {
	args := u.mounterArgs()
	r := devices.Request{
		Holder: u.of, Use: u.device, Spec: u.record.Spec(), Pod: u.pod, Label: u.record.SELinuxLabel,
		Args: volume.DeviceMounterArgs{FsGroup: args.FsGroup, SELinuxLabel: args.SELinuxLabel, Progress: args.Progress},
	}
	if u.mapping != nil {
		r.Mapper = u.mapping.mapper
	}
	return r
}

// letGo takes a volume that was not set up off its device. It reports false where the volume's
// record must stay for the device's sake.
func (a *admission) letGo(u *setUp) bool { return a.devices.LetGo(u.of, u.device) }

// unstage undoes stage, for a volume whose own mount is gone.
func (a *admission) unstage(ctx context.Context, s *podVolume, was actualVolume, plugin volume.VolumePlugin) error {
	return a.devices.Unstage(ctx, devices.Leaving{Holder: s, Plugin: plugin, Spec: was.record.Spec(), PodUID: was.key.PodUID, Use: was.device})
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
	if err := a.checkNode(u); err != nil {
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

// checkNode refuses a volume that waits for reports about its attachment, for another pod,
// or for the label of its device. One that is mounted already may be looked at again. The
// caller holds the lock.
func (a *admission) checkNode(u *setUp) error {
	if !u.of.IsMounted() || !u.of.Exists() {
		if err := a.devices.CheckReports(u.of); err != nil {
			return volume.NothingDone(err)
		}
		if err := a.checkOncePod(u); err != nil {
			return volume.NothingDone(err)
		}
	}
	return a.devices.Admit(u.deviceRequest(), u.of.actual.device)
}

// checkOncePod refuses a ReadWriteOncePod volume that another pod has something
// of, whatever its plugin; then the volume is
// tried again when a pod has let go of it. The caller holds the lock.
func (a *admission) checkOncePod(u *setUp) error {
	pv := u.record.PersistentVolume
	if !oncepod.Is(pv) {
		return nil
	}
	for _, p := range a.entries.pods {
		if p == u.of.pod || p.find(func(s *podVolume) bool { return s.has(u, pv.Name) }) == nil {
			continue
		}
		a.actual.oncePod.Add(u.of, pv.Name)
		return oncepod.Used(pv.Name, u.record.Pod, p.name, p.uid)
	}
	return nil
}

// has reports whether the volume has something of a PersistentVolume that is asked
// for. Of a directory whose record is lost only the name is known.
func (s *podVolume) has(u *setUp, pvName string) bool {
	r := s.actual.record
	switch {
	case !s.actual.exists():
		return false
	case r == nil || r.Rebuilt:
		return s.actual.key.Plugin == u.key.Plugin && s.actual.key.Spec == u.key.Spec
	}
	return r.PersistentVolume != nil && r.PersistentVolume.Name == pvName
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
		a.devices.Pass(other, u.of, other.actual.device)
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
	a.devices.Pass(s, own, s.actual.device)
	s.actual, s.state, s.since = actualVolume{}, StatePending, time.Now()
	a.status.note(s)
	a.status.note(own)
}
