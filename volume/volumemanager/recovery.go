package volumemanager

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/rebuilt"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
	"github.com/podvol/podvol/volume/volumemanager/internal/statusrows"
)

// recovery learns what an earlier process has left: from records, directories and the
// mount table.
type recovery struct {
	entries *entries
	desired *desiredStateOfWorld
	actual  *actualStateOfWorld
	status  *publisher
	devices *devices.Table
	host    *volume.Host
	plugins *volume.VolumePluginMgr
	records *rootdir.Records // which it opens
	log     *slog.Logger
}

// recover learns the actual state from the records and the mount table. First it
// ends a dead owner's mount helpers, which could mount later.
func (v *recovery) recover(ctx context.Context, config Config) error {
	if config.Adopt {
		if err := config.refuseKubelet(); err != nil {
			return err
		}
	}
	if err := rootdir.EndHelpers(ctx, v.host.RootDir, v.log); err != nil {
		return err
	}
	if err := rootdir.MakePodsDir(v.host.RootDir); err != nil {
		return err
	}
	mounted, err := rootdir.ReadMounts(v.host.RootDir, v.host.Mounter)
	if err != nil {
		return err
	}
	if _, err := durable.Sweep(rootdir.StateDir(v.host.RootDir)); err != nil {
		return err
	}
	opened, found, unreadable, err := rootdir.OpenRecords(v.host.RootDir)
	if err != nil {
		return err
	}
	*v.records = opened
	if err := rootdir.Damaged(v.host.RootDir); err != nil {
		v.log.Warn("the volume records are damaged", "error", err)
	}
	for _, err := range unreadable {
		v.log.Warn("a volume record cannot be read", "error", err)
		v.recoverUnreadable(err)
	}
	if err := v.recoverAll(ctx, found, mounted); err != nil {
		return err
	}
	if config.Adopt {
		if err := v.adopt(ctx, mounted); err != nil {
			return err
		}
	}
	v.entries.Lock()
	defer v.entries.Unlock()
	v.desired.resyncUndeclared() // the pods may be complete already
	v.desired.recoverEnded()
	return nil
}

// recoveryPatience bounds all questions together whether recorded volumes are attached. The
// API may be away, and what is mounted must be known soon.
const recoveryPatience = 2 * time.Second

func (v *recovery) recoverRecord(ctx context.Context, record *mountrecord.Record, mounted rootdir.Mounts) error {
	line, err := mountrecord.Encode(record)
	if err != nil {
		return err
	}
	row := statusrows.Recorded(record, mounted, rootdir.NoneGone)[0]
	use := v.deviceOf(ctx, record)
	v.entries.Lock()
	defer v.entries.Unlock()
	s := v.actual.recovered(rootdir.KeyOf(record), record.Volumes)
	s.actual.record, s.actual.digest, s.actual.source = record, rootdir.DigestOf(line), v.sourceName(record)
	if record.Detached != nil {
		s.actual.detached = record.Detached.Recall(v.host.Mounter)
	}
	v.status.note(s)
	v.recoverDevice(s, use, record, mounted)
	if s.pod.name.Name == "" {
		s.pod.name = record.Pod
	}
	s.state, s.since, s.took, s.err = row.State, row.Since, row.Duration, rootdir.ReasonOf(record, mounted, rootdir.NoneGone)
	if s.unused && s.pod.wanted {
		v.actual.rest(s)
	}
	return nil
}

func (v *recovery) recoverUnreadable(unreadable *UnreadableRecordError) {
	key, ok := rootdir.ParseKey(unreadable.Volume)
	if !ok {
		return // it is no volume's, and nothing will ask for it
	}
	v.entries.Lock()
	defer v.entries.Unlock()
	s := v.actual.recovered(key, []string{key.Spec})
	s.actual.unreadable, v.actual.mayHide = unreadable, true
	s.state, s.err = StateFailed, unreadable
}

// needed is what a recorded volume needs of its node, and why that is not known.
type needed struct {
	use *devices.Use
	err error
}

// deviceOf asks what a recorded volume needs of its node.
func (v *recovery) deviceOf(ctx context.Context, record *mountrecord.Record) (n needed) {
	plugin, err := v.plugins.FindPluginByName(record.Plugin)
	if err != nil {
		return n // nor can it be torn down
	}
	n.use, n.err = devices.Attaching(ctx, plugin, record.Spec(), record.PodUID)
	if n.err != nil {
		v.log.Warn("what a recorded volume needs of its node is not known; it is asked again before the volume is torn down", "podUID", record.PodUID, "volume", record.Volumes[0], "error", n.err)
	}
	return n
}

// recoverDevice makes a volume whose record was found count among those that have its
// device. The caller holds the lock.
func (v *recovery) recoverDevice(s *podVolume, n needed, record *mountrecord.Record, mounted rootdir.Mounts) {
	if n.err != nil {
		v.devices.Join(s, n.use)
		return
	}
	s.actual.device = n.use
	v.devices.Recover(s, n.use, record, mounted)
}

// sourceName is the plugin's name of a recorded source; empty where the plugin
// does not know it any more.
func (v *recovery) sourceName(record *mountrecord.Record) string {
	plugin, err := v.plugins.FindPluginByName(record.Plugin)
	if err != nil {
		return ""
	}
	name, err := volume.PodVolumeName(plugin, record.Spec(), record.PodUID)
	if err != nil {
		return ""
	}
	return name
}

// load learns what the records say, so that it is known which volumes share a device.
func (v *recovery) load(ctx context.Context) error {
	mounted, err := rootdir.ReadMounts(v.host.RootDir, v.host.Mounter)
	if err != nil {
		return err
	}
	opened, found, _, err := rootdir.OpenRecords(v.host.RootDir)
	if err != nil {
		return err
	}
	*v.records = opened
	if err := v.recoverAll(ctx, found, mounted); err != nil {
		return errors.Join(err, v.records.Close())
	}
	return nil
}

func (v *recovery) recoverAll(ctx context.Context, found []*mountrecord.Record, mounted rootdir.Mounts) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryPatience)
	defer cancel()
	for _, record := range found {
		if err := v.recoverRecord(ctx, record, mounted); err != nil {
			return err
		}
	}
	return nil
}

// ErrKubeletRuns says that a kubelet runs on this machine, whose volumes must
// not be taken over under its hands.
var ErrKubeletRuns = rootdir.ErrKubeletRuns

func (c Config) refuseKubelet() error {
	return rootdir.RefuseKubelet(cmp.Or(c.kubeletDir, rootdir.ProcDir))
}

// adopt makes a record for each directory of a volume that has none. A directory
// that no plugin knows is left alone.
func (v *recovery) adopt(ctx context.Context, mounted rootdir.Mounts) error {
	dirs, err := rootdir.VolumeDirs(v.host.RootDir)
	if err != nil {
		return err
	}
	for _, key := range dirs {
		if v.isRecorded(key) {
			continue
		}
		if err := v.adoptOne(ctx, key, mounted); err != nil {
			v.log.Warn("a volume cannot be adopted and is left alone", "podUID", key.PodUID, "plugin", key.Plugin, "volume", key.Spec, "error", err)
		}
	}
	return nil
}

func (v *recovery) isRecorded(key rootdir.Key) bool { return v.volumeAt(key) != nil }

// volumeAt returns the volume of a directory that is there; nil: none.
func (v *recovery) volumeAt(key rootdir.Key) *podVolume {
	v.entries.Lock()
	defer v.entries.Unlock()
	return v.entries.at(key)
}

// rebuilt makes records of what has none.
func (v *recovery) rebuilt() rebuilt.Maker {
	return rebuilt.Maker{Host: v.host, Plugins: v.plugins}
}

func (v *recovery) adoptOne(ctx context.Context, key rootdir.Key, mounted rootdir.Mounts) error {
	record, err := v.rebuilt().Record(ctx, key)
	if err != nil {
		return err
	}
	line, err := mountrecord.Encode(record)
	if err != nil {
		return err
	}
	device, err := v.rebuilt().Device(record)
	if err != nil {
		return err
	}
	if err := v.records.Write(key, line); err != nil {
		return err
	}
	record.Confirmed = &mountrecord.Confirmation{At: time.Now(), MountPoint: mounted.Has(record.Path), Device: device}
	if err := v.records.Confirm(key, *record.Confirmed); err != nil {
		return err
	}
	v.log.Info("adopted a volume without a record", "podUID", key.PodUID, "plugin", key.Plugin, "volume", key.Spec, "source", record.Source, "guessed", record.Guessed)
	return v.recoverRecord(ctx, record, mounted)
}
