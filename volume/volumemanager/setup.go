package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/tracing"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/internal/podspec"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/volumemanager/internal/blockmap"
	"github.com/podvol/podvol/volume/volumemanager/internal/dependencies"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/earliness"
	"github.com/podvol/podvol/volume/volumemanager/internal/growth"
	"github.com/podvol/podvol/volume/volumemanager/internal/podevents"
	"github.com/podvol/podvol/volume/volumemanager/internal/progress"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
	"github.com/podvol/podvol/volume/volumesource"
)

// operationExecutor carries out the operations that the reconciler decides on: it sets volumes
// up and tears them down.
type operationExecutor struct {
	entries   *entries
	actual    *actualStateOfWorld
	status    *publisher
	schedule  *schedule
	admission *admission
	needs     *nodeNeeds
	grower    growth.Grower

	host       *volume.Host
	plugins    *volume.VolumePluginMgr
	records    *rootdir.Records
	podDirs    *rootdir.PodDirs
	containers *containermounts.Binder
	blocks     blockmap.Mapper
	events     podevents.Teller
	log        *slog.Logger
	// the others are [Config]'s
	objects      objects.Source
	trustBundles volume.TrustBundleGetter
	translator   volume.Translator
	setUpTimeout time.Duration
}

// setUp is one attempt to set a volume up.
type setUp struct {
	pod *v1.Pod
	of  *podVolume
	// progress is what the plugin reports to.
	progress *progress.Reporter

	// what it is, by resolve
	spec    *volume.Spec
	plugin  volume.VolumePlugin
	mounter volume.Mounter   // of a block volume its mapping
	mapping *devices.Mapping // nil for a file system
	record  *mountrecord.Record
	key     rootdir.Key
	source  string // the plugin's name of the source

	// what was found about it here, by the admission
	needsNode bool         // see nodeNeeds
	device    *devices.Use // nil: none
	line      []byte       // the record as it is stored
	digest    rootdir.Digest
	before    actualVolume
	newPod    bool // its pod had no directory

	online  bool           // it was mounted before this set-up
	growing *growth.Volume // nil: the node has no part when it grows

	undo func() // puts the record back, after the directories are gone; nil: it stays
}

// setUp sets a volume up as its pod was declared when that was decided on. An attempt that
// came too early for the API server is repeated, and nothing is said of it: see [earliness.Earliness].
func (o *operationExecutor) setUp(ctx context.Context, s *podVolume, w attempt) error {
	early := earliness.New(w.first)
	for {
		u, err := o.setUpOnce(ctx, s, w)
		if err == nil {
			o.refreshLater(s, u)
			return nil
		}
		again := ctx.Err() == nil && early.MayRetry(err)
		if ctx.Err() == nil && !again { // else it was given up: the pod was deleted, or the manager ends
			err = o.tellFailure(ctx, u, err)
		}
		o.undoSetUp(ctx, u)
		if !again || !early.Pause.Wait(ctx) {
			return err
		}
	}
}

func (o *operationExecutor) setUpOnce(ctx context.Context, s *podVolume, w attempt) (*setUp, error) {
	waits := progress.NewPatience(ctx, o.setUpTimeout)
	defer waits.End()
	u := &setUp{of: s, pod: w.pod, record: &mountrecord.Record{PodUID: w.pod.UID, Pod: podspec.Name(w.pod), NodeName: o.host.NodeName, Volumes: w.names}}
	u.progress = progress.Begin(progress.Config{Pod: u.pod, Volumes: w.names, Events: o.events.Sink, Patience: waits,
		Show: func(now volume.Progress) { o.showProgress(s, &now) }})
	defer o.endProgress(s, u.progress)
	return u, o.trySetUp(waits, u)
}

// tellFailure tells the pod of a failure, which it returns. A volume that waits for its claim or
// its attachment has not failed, unless attaching it has; and it goes on waiting then, unless the
// node has no room for it.
func (o *operationExecutor) tellFailure(ctx context.Context, u *setUp, err error) error {
	told := err
	if missing, waits := errors.AsType[*AttachmentError](err); waits {
		told = checkAttachment(ctx, missing, u.plugin, u.record.Spec())
	}
	if told == nil || errors.Is(told, claimbinding.ErrUnbound) {
		return err
	}
	o.events.Failed(u.pod, u.record, u.mapping != nil, told)
	if errors.Is(told, volume.ErrAttachLimitExceeded) {
		return volume.NothingDone(told)
	}
	return err
}

// showProgress makes what a plugin says part of the volume's rows.
func (o *operationExecutor) showProgress(s *podVolume, now *volume.Progress) {
	o.entries.Lock()
	defer o.entries.Unlock()
	s.progress = now
	o.status.publish(s)
}

func (o *operationExecutor) endProgress(s *podVolume, r *progress.Reporter) {
	if !r.End() {
		return
	}
	o.entries.Lock()
	defer o.entries.Unlock()
	s.progress = nil
}

func (o *operationExecutor) trySetUp(ctx context.Context, u *setUp) error {
	done, err := o.podDirs.Use(ctx, u.pod.UID)
	if err != nil {
		return volume.NothingDone(err)
	}
	defer done()
	depends := dependencies.Finder{Set: &u.of.watches, Objects: o.objects, TrustBundles: o.trustBundles, Changed: func() { o.changed(u.of) }}
	defer depends.StopUnused()
	if err := tracing.Step(ctx, "resolve", func(ctx context.Context) error { return o.resolve(ctx, depends, u) }); err != nil {
		o.admission.show(u)
		return err
	}
	if err := o.admission.admit(ctx, u); err != nil {
		return err
	}
	return o.apply(ctx, u)
}

// changed has a volume set up again: an object that it depends on has changed.
func (o *operationExecutor) changed(s *podVolume) {
	o.entries.Lock()
	defer o.entries.Unlock()
	o.schedule.resync(s)
}

// refreshLater has a volume set up again when its mounter says so, or its claim is to be told
// of its growth.
func (o *operationExecutor) refreshLater(s *podVolume, u *setUp) {
	due := volume.RefreshAfter(u.mounter)
	if next := u.nextReport(); due.IsZero() || !next.IsZero() && next.Before(due) {
		due = next
	}
	o.entries.Lock()
	defer o.entries.Unlock()
	s.refreshAt = due
}

// undoSetUp undoes a failed set-up that is known to have done nothing: it removes
// first the empty directories, and then the record, which alone leads to them.
func (o *operationExecutor) undoSetUp(ctx context.Context, u *setUp) {
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

func (o *operationExecutor) setUndoing(s *podVolume, undoing bool) {
	o.entries.Lock()
	defer o.entries.Unlock()
	s.undoing = undoing
}

// removeEmptyDirs removes the pod's directories once none of its volumes has
// anything in them: of volumes that are torn down at the same time, the last one
// does.
func (o *operationExecutor) removeEmptyDirs(ctx context.Context, s *podVolume) error {
	o.entries.Lock()
	s.unmounted = s.doing == opTearDown
	used := slices.ContainsFunc(s.pod.volumes, func(other *podVolume) bool {
		return other.actual.isPods() && !other.unmounted && !other.undoing
	})
	plugin := s.actual.key.Plugin
	o.entries.Unlock()
	if used {
		return nil
	}
	return o.podDirs.RemoveEmpty(ctx, o.host.RootDir, s.pod.uid, plugin)
}

// resolve finds out what the volume is, and touches nothing. With an error, the record
// has as much as was found.
func (o *operationExecutor) resolve(ctx context.Context, depends dependencies.Finder, u *setUp) (err error) {
	reader := &growth.ClaimReader{Source: depends}
	if u.spec, err = podspec.Resolve(ctx, reader, string(o.host.NodeName), u.pod, podspec.Volume(u.pod, u.record.Volumes[0])); err != nil {
		return err
	}
	if u.spec, err = o.plugins.Translate(o.translator, u.spec, u.pod.Namespace); err != nil {
		return err
	}
	u.record.InlineVolume, u.record.PersistentVolume, u.record.ReadOnly, u.record.Migrated = u.spec.Volume, u.spec.PersistentVolume, u.spec.ReadOnly, u.spec.Migrated
	if err := podspec.CheckMode(u.pod, u.record.Volumes, u.spec); err != nil {
		return err
	}
	if u.plugin, err = o.plugins.FindPluginBySpec(u.spec); err != nil {
		return err
	}
	u.record.Plugin, u.record.Source = u.plugin.GetPluginName(), volumesource.Describe(u.plugin, u.spec)
	if err := podspec.CheckMountOptions(u.plugin, u.spec); err != nil {
		return err
	}
	if err := podspec.CheckNamesake(o.plugins, o.translator, u.pod, u.record.Volumes, u.spec, u.plugin); err != nil {
		return err
	}
	for _, ref := range volume.DependsOn(u.plugin, u.spec, u.pod) {
		if ref != volume.NewObjectRef("Pod", u.pod.Namespace, u.pod.Name) { // which PutPod tells of
			depends.On(ref)
		}
	}
	if u.mounter, err = o.newMounter(u); err != nil {
		return err
	}
	u.record.Path = u.mounter.GetPath()
	if u.source, err = volume.PodVolumeName(u.plugin, u.spec, u.pod.UID); err != nil {
		return err
	}
	u.key = rootdir.KeyOf(u.record)
	return o.followGrowth(u, reader.Claim)
}

func (o *operationExecutor) newMounter(u *setUp) (_ volume.Mounter, err error) {
	if !u.spec.IsBlock() {
		return u.plugin.NewMounter(u.spec, u.pod)
	}
	u.mapping, err = o.needs.devices.NewMapping(&o.blocks, u.plugin, u.spec, u.pod, u.record.Volumes[0])
	return u.mapping, err
}

// mounterArgs are the parts of the pod's spec that the volume's mounter needs.
func (u *setUp) mounterArgs() volume.MounterArgs {
	args := podspec.MounterArgs(u.pod)
	args.SELinuxLabel = u.record.SELinuxLabel
	args.Progress = u.progress.Report
	return args
}

// apply is the operation itself: record, sync, act, confirm.
func (o *operationExecutor) apply(ctx context.Context, u *setUp) error {
	if u.before.digest != u.digest {
		if err := tracing.Step(ctx, "record", func(context.Context) error { return o.records.Write(u.key, u.line) }); err != nil {
			o.actual.set(u.of, u.before)
			return volume.NothingDone(err)
		}
	}
	start := time.Now()
	if u.newPod {
		rootdir.MakeWay(o.host, u.key, u.record.Path)
	}
	if err := o.act(ctx, u); err != nil {
		if !volume.IsUncertain(err) {
			u.undo = func() { o.restore(u) }
		}
		return err
	}
	return tracing.Step(ctx, "confirm", func(context.Context) error { return o.confirm(u, start) })
}

// act mounts the device, if the volume has one, and then the volume. A volume that was
// enlarged grows in between, or once it is mounted.
func (o *operationExecutor) act(ctx context.Context, u *setUp) error {
	if err := o.needs.stage(ctx, u); err != nil {
		return err
	}
	if err := o.growDevice(ctx, u); err != nil {
		return err
	}
	if err := tracing.Step(ctx, "plugin", func(ctx context.Context) error { return u.mounter.SetUp(ctx, u.mounterArgs()) }); err != nil {
		return err
	}
	return o.growMounted(ctx, u)
}

// restore puts the record back as it was before a set-up that did nothing. A
// record too many is harmless, so failing to do it is only logged.
func (o *operationExecutor) restore(u *setUp) {
	before := u.before
	if before.record == nil && !o.needs.letGo(u) {
		return // the record must stay for the device's sake
	}
	var err error
	switch {
	case before.record == nil:
		err = o.records.Release(u.key, u.record)
	case before.digest != u.digest:
		err = o.records.Rewrite(u.key, before.record)
	}
	if err != nil {
		o.log.Warn("a volume record could not be put back", "podUID", u.key.PodUID, "volume", u.key.Spec, "error", err)
		return
	}
	o.actual.set(u.of, before)
}

// confirm notes that the volume is set up, unless that is known. A power cut may
// take the note, since it takes the mounts too. A note that cannot be written,
// even once the journal had the occasion to write its file anew, is a failure: the
// next process would take the volume for one that was never finished, and fsck
// would tear it down.
func (o *operationExecutor) confirm(u *setUp, start time.Time) error {
	mounted, err := rootdir.IsOwnMountPoint(o.host, u.record.Path)
	if err != nil {
		return err
	}
	is := o.actual.of(u.of)
	known := is.record.Confirmed
	mapped := u.mapping.Mapped()
	if known != nil && known.MountPoint == mounted && known.Device.Equal(mapped) {
		return nil
	}
	if known == nil {
		o.events.FirstSetUp(u.pod, u.record, o.keepsGroups(u))
	}
	now := time.Now()
	c := &mountrecord.Confirmation{At: now, Took: now.Sub(start), MountPoint: mounted, Device: mapped}
	confirmed := *u.record
	confirmed.Confirmed, confirmed.Detached = c, nil
	note := func() error { return o.records.Confirm(u.key, *c) }
	digest := u.digest
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
	o.actual.set(u.of, actualVolume{key: u.key, record: &confirmed, digest: digest, source: u.source, device: is.device})
	return nil
}

// keepsGroups reports whether the files of a file system below the root are not given to
// the pod's fsGroup. Of one outside, a hostPath, no pod expects that.
func (o *operationExecutor) keepsGroups(u *setUp) bool {
	return u.mapping == nil && !u.mounter.GetAttributes().Managed && pathin.Strictly(rootdir.PodsDir(o.host.RootDir), u.record.Path)
}
