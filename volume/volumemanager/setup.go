package volumemanager

import (
	"context"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podspec"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/blockmap"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/progress"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// operator carries out the operations that the reconciler decides on: it sets volumes up and
// tears them down.
type operator struct {
	*world
	blocks blockmap.Mapper
}

func newOperator(w *world) *operator {
	return &operator{world: w, blocks: blockmap.Mapper{Mounter: w.host.Mounter, Holder: w.config.DeviceHolder, KeepRoot: w.keepRoot}}
}

// setUp is one attempt to set a volume up.
type setUp struct {
	pod     *v1.Pod
	of      *podVolume
	mounter volume.Mounter // nil for a block volume
	mapping *mapping       // nil for a file system
	record  *mountrecord.Record
	key     rootdir.Key
	source  string       // the plugin's name of the source
	device  *devices.Use // nil: none
	undo    func()       // puts the record back, after the directories are gone; nil: it stays
	// progress is what the plugin reports to.
	progress *progress.Reporter
}

// setUp sets a volume up as its pod was declared when that was decided on.
func (o *operator) setUp(ctx context.Context, s *podVolume, w attempt) error {
	waits := progress.NewPatience(ctx, o.config.SetUpTimeout)
	defer waits.End()
	u := &setUp{of: s, pod: w.pod, record: &mountrecord.Record{PodUID: w.pod.UID, Pod: podspec.Name(w.pod), NodeName: o.host.NodeName, Volumes: w.names}}
	u.progress = progress.Begin(progress.Config{Pod: u.pod, Volumes: w.names, Events: o.config.Events, Patience: waits,
		Show: func(now volume.Progress) { o.showProgress(s, &now) }})
	defer o.endProgress(s, u.progress)
	err := o.trySetUp(waits, u)
	if err == nil {
		o.refreshLater(s, u.mounter)
		return nil
	}
	if ctx.Err() == nil { // else it was given up: the pod was deleted, or the manager ends
		o.event(u, err)
	}
	o.undoSetUp(ctx, u)
	return err
}

// showProgress makes what a plugin says part of the volume's rows.
func (o *operator) showProgress(s *podVolume, now *volume.Progress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.progress = now
	o.publish(s)
}

func (o *operator) endProgress(s *podVolume, r *progress.Reporter) {
	if !r.End() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	s.progress = nil
}

func (o *operator) trySetUp(ctx context.Context, u *setUp) error {
	done, err := o.podDirs.Use(ctx, u.pod.UID)
	if err != nil {
		return volume.NothingDone(err)
	}
	defer done()
	depends := dependencies{o, u.of}
	defer depends.settle()
	err = o.prepare(ctx, depends, u)
	o.show(u)
	if err != nil {
		return err
	}
	return o.apply(ctx, u)
}

// show puts the findings into the volume's rows.
func (o *operator) show(u *setUp) {
	o.mu.Lock()
	defer o.mu.Unlock()
	u.of.shown = u.record
	o.byClaim.note(u.of)
	if u.key != (rootdir.Key{}) { // a look-up that has failed says nothing
		o.devices.Join(u.of, u.device)
	}
	o.publish(u.of)
}

// undoSetUp undoes a failed set-up that is known to have done nothing: it removes
// first the empty directories, and then the record, which alone leads to them.
func (o *operator) undoSetUp(ctx context.Context, u *setUp) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace) // its own may have ended
	defer cancel()
	if u.undo == nil {
		_ = o.removeEmptyDirs(ctx, u.of) // the volume's teardown will say so
		return
	}
	o.setUndoing(u.of, true)
	defer o.setUndoing(u.of, false)
	if err := o.removeEmptyDirs(ctx, u.of); err != nil {
		o.log.Warn("directories of a pod could not be removed", "podUID", u.key.PodUID, "error", err)
	}
	u.undo()
}

func (o *operator) setUndoing(s *podVolume, undoing bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.undoing = undoing
}

// removeEmptyDirs removes the pod's directories once none of its volumes has
// anything in them that stays: of volumes that are torn down or undone at the
// same time, the last one finds the directories empty.
func (o *operator) removeEmptyDirs(ctx context.Context, s *podVolume) error {
	o.mu.Lock()
	used := slices.ContainsFunc(s.pod.volumes, func(other *podVolume) bool {
		return other.actual.exists() && other.doing != opTearDown && !other.undoing
	})
	o.mu.Unlock()
	if used {
		return nil
	}
	return o.podDirs.RemoveEmpty(ctx, o.host.RootDir, s.pod.uid)
}

// prepare finds out what to do, and touches nothing. With an error, the record
// has as much as was found.
func (o *operator) prepare(ctx context.Context, depends dependencies, u *setUp) error {
	spec, err := podspec.Resolve(ctx, depends, o.config.NodeName, u.pod, podspec.Volume(u.pod, u.record.Volumes[0]))
	if err != nil {
		return err
	}
	u.record.InlineVolume, u.record.PersistentVolume, u.record.ReadOnly = spec.Volume, spec.PersistentVolume, spec.ReadOnly
	if err := podspec.CheckMode(u.pod, u.record.Volumes, spec); err != nil {
		return err
	}
	plugin, err := o.plugins.FindPluginBySpec(spec)
	if err != nil {
		return err
	}
	u.record.Plugin, u.record.Source = plugin.GetPluginName(), volume.DescribeSource(plugin, spec)
	if err := podspec.CheckMountOptions(plugin, spec); err != nil {
		return err
	}
	if err := podspec.CheckNamesake(o.plugins, u.pod, spec, plugin); err != nil {
		return err
	}
	for _, ref := range volume.DependsOn(plugin, spec, u.pod) {
		if ref != volume.NewObjectRef("Pod", u.pod.Namespace, u.pod.Name) { // which PutPod tells of
			depends.on(ref)
		}
	}
	if err := u.prepareVolume(plugin, spec); err != nil {
		return err
	}
	if u.source, err = plugin.GetVolumeName(spec); err != nil {
		return err
	}
	u.key = rootdir.KeyOf(u.record)
	if u.device, err = devices.Of(plugin, spec, u.pod.UID); err != nil {
		return err
	}
	return o.label(ctx, u, plugin, spec)
}

// prepareVolume finds out where the volume will be.
func (u *setUp) prepareVolume(plugin volume.VolumePlugin, spec *volume.Spec) (err error) {
	if spec.IsBlock() {
		return u.prepareBlock(plugin, spec)
	}
	if u.mounter, err = plugin.NewMounter(spec, u.pod); err != nil {
		return err
	}
	u.record.Path = u.mounter.GetPath()
	return nil
}

// MounterArgs are the wishes of the pod for this volume.
func (u *setUp) mounterArgs() volume.MounterArgs {
	args := podspec.MounterArgs(u.pod)
	args.SELinuxLabel = u.record.SELinuxLabel
	args.Progress = u.progress.Report
	return args
}

// apply is the operation itself: record, sync, act, confirm.
func (o *operator) apply(ctx context.Context, u *setUp) error {
	u.record.Detached = o.detachment(u.of)
	line, err := mountrecord.Encode(u.record)
	if err != nil {
		return err
	}
	digest := rootdir.DigestOf(line)
	before, err := o.admit(u, digest)
	if err != nil {
		return err
	}
	if !before.exists() {
		if err := o.refuseUnrecorded(u.key); err != nil {
			o.setActual(u.of, before)
			return volume.NothingDone(err)
		}
	}
	if before.digest != digest {
		if err := o.records.Write(u.key, line); err != nil {
			o.setActual(u.of, before)
			return volume.NothingDone(err)
		}
	}
	start := time.Now()
	if err := o.act(ctx, u); err != nil {
		if !volume.IsUncertain(err) {
			u.undo = func() { o.restore(u, before, digest) }
		}
		return err
	}
	return o.confirm(u, digest, start)
}

// detachment is the note that a volume was detached lazily; nil: none.
// Until the volume is mounted again, whatever fails meanwhile, it must not be
// forgotten that its file system may be in use.
func (o *operator) detachment(s *podVolume) *lazyunmount.Detachment {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s.actual.record == nil {
		return nil
	}
	return s.actual.record.Detached
}

// act mounts the device, if the volume has one, and then the volume.
func (o *operator) act(ctx context.Context, u *setUp) error {
	if err := o.devices.Stage(ctx, u.deviceRequest()); err != nil {
		return err
	}
	if u.mapping != nil {
		return o.mapDevice(ctx, u)
	}
	return u.mounter.SetUp(ctx, u.mounterArgs())
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

// setActual replaces the known state of a volume's directory.
func (w *world) setActual(s *podVolume, a actualVolume) {
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := s.actual.exists() && !a.exists()
	name := s.actual.key.Spec // a PersistentVolume's own
	s.actual = a
	w.byClaim.note(s)
	if gone {
		w.wakeForPV(name)
	}
}

// restore puts the record back as it was before a set-up that did nothing. A
// record too many is harmless, so failing to do it is only logged.
func (o *operator) restore(u *setUp, before actualVolume, digest rootdir.Digest) {
	if before.record == nil && !o.devices.LetGo(u.of, u.device) {
		return // the record must stay for the device's sake
	}
	var err error
	switch {
	case before.record == nil:
		err = o.records.Release(u.key, u.record)
	case before.digest != digest:
		err = o.records.Rewrite(u.key, before.record)
	}
	if err != nil {
		o.log.Warn("a volume record could not be put back", "podUID", u.key.PodUID, "volume", u.key.Spec, "error", err)
		return
	}
	o.setActual(u.of, before)
}

// confirm notes that the volume is set up, unless that is known. A power cut may
// take the note, since it takes the mounts too. A note that cannot be written,
// even once the journal had the occasion to write its file anew, is a failure: the
// next process would take the volume for one that was never finished, and fsck
// would tear it down.
func (o *operator) confirm(u *setUp, digest rootdir.Digest, start time.Time) error {
	mounted, err := o.mountedBelow(u.record.Path)
	if err != nil {
		return err
	}
	o.mu.Lock()
	known, device := u.of.actual.record.Confirmed, u.of.actual.device
	o.mu.Unlock()
	mapped := u.mappedDevice()
	if known != nil && known.MountPoint == mounted && equalDevices(known.Device, mapped) {
		return nil
	}
	if known == nil {
		o.adviseGroups(u)
		o.tellShortfalls(u)
	}
	now := time.Now()
	c := &mountrecord.Confirmation{At: now, Took: now.Sub(start), MountPoint: mounted, Device: mapped}
	confirmed := *u.record
	confirmed.Confirmed, confirmed.Detached = c, nil
	note := func() error { return o.records.Confirm(u.key, *c) }
	if u.record.Detached != nil {
		if digest, err = rootdir.DigestOfRecord(&confirmed); err != nil {
			return err
		}
		note = func() error { return o.records.Rewrite(u.key, &confirmed) }
	}
	if err := note(); err != nil {
		if err := note(); err != nil {
			return fmt.Errorf("it is mounted, and that could not be noted, so another process would take it for unfinished: %w", err)
		}
	}
	o.setActual(u.of, actualVolume{key: u.key, record: &confirmed, digest: digest, source: u.source, device: device})
	return nil
}

// wrap makes sure that an error names the volume as the pod does, and the pod;
// nil stays nil.
func wrap(r *mountrecord.Record, volumeName, op string, err error) error {
	if err == nil {
		return nil
	}
	e := &volume.Error{Op: op, Plugin: r.Plugin, Volume: volumeName, Pod: r.Pod, PodUID: r.PodUID, Err: err}
	if own, ok := err.(*volume.Error); ok {
		e.Op, e.Err = own.Op, own.Err // it says the same, with the spec's name
	}
	return e
}

// label sets the label that the volume is asked to be mounted with. One that is
// mounted keeps its own, since another needs another mount.
func (o *operator) label(ctx context.Context, u *setUp, plugin volume.VolumePlugin, spec *volume.Spec) (err error) {
	if label, mounted := o.mountedLabel(u); mounted {
		u.record.SELinuxLabel = label
		return nil
	}
	u.record.SELinuxLabel, err = o.config.SELinux.MountLabel(ctx, u.pod, u.record.Volumes, plugin, spec)
	return err
}

func (o *operator) mountedLabel(u *setUp) (label string, mounted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range u.of.pod.volumes { // one that was adopted has another entry
		if s.state == StateMounted && s.actual.record != nil && s.actual.key == u.key {
			return s.actual.record.SELinuxLabel, true
		}
	}
	return "", false
}
