package volumemanager

import (
	"errors"
	"fmt"
	"slices"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

var (
	// ErrDirectoryGone says that a volume that is no mount of its own was set up
	// once, and its directory below the root directory was removed since.
	ErrDirectoryGone = errors.New("its directory is gone; set the pod up again, which makes a new one, or tear it down")
	// ErrVanished says that a volume's mount is gone although the manager has not
	// unmounted it.
	ErrVanished = errors.New("its mount has vanished")
	// ErrOutcomeUnknown says that a set-up was begun and never confirmed.
	ErrOutcomeUnknown = errors.New("its set-up was begun and not finished; set the pod up again, or tear it down")
	// ErrNoRecord says that a volume's directory has no record.
	ErrNoRecord = errors.New("its directory has no record: podvol did not make it, or the record was lost; it is left alone")
)

// Inspect returns what is below a root directory, from records, directories
// and mount table, without taking the root's lock and without touching any
// volume's file system. Rows are ordered by pod and volume. The error joins
// what could not be read, such as damaged records (*[DamagedError],
// *[UnreadableRecordError]); the rows are valid besides it, but there may be
// more. A root that does not exist has no volumes; one that [CheckRoot] refuses is
// not looked into.
func Inspect(rootDir string, table mount.Table) ([]VolumeStatus, error) {
	if err := rootdir.Check(rootDir); err != nil {
		return nil, err
	}
	mounted, err := rootdir.NewMounts(rootDir, table)
	if err != nil {
		return nil, err
	}
	found, unreadable, damaged, err := rootdir.ReadRecords(rootDir)
	if err != nil {
		return nil, err
	}
	var errs []error
	if damaged != nil {
		errs = append(errs, damaged)
	}
	dirs, err := rootdir.VolumeDirs(rootDir)
	if err != nil {
		errs = append(errs, err)
	}
	gone := goneFrom(rootDir, dirs, err)
	known := make(map[rootdir.Key]bool, len(found))
	rows := make([]VolumeStatus, 0, len(found))
	for _, record := range found {
		known[rootdir.KeyOf(record)] = true
		rows = append(rows, statusOf(record, mounted, gone)...)
	}
	for _, err := range unreadable {
		errs = append(errs, err)
		if key, ok := rootdir.ParseKey(err.Volume); ok {
			known[key] = true
			rows = append(rows, VolumeStatus{PodUID: key.PodUID, Volume: key.Spec, Plugin: key.Plugin, Path: err.Path, State: StateFailed, Found: true, Err: err})
		}
	}
	for _, key := range dirs {
		if !known[key] {
			rows = append(rows, unknownStatus(rootDir, key))
		}
	}
	slices.SortFunc(rows, compareStatus)
	return rows, errors.Join(errs...)
}

// statusOf judges a recorded volume by its confirmation and the mount table:
// one row for each of its names in the pod.
func statusOf(r *mountrecord.Record, mounted rootdir.Mounts, gone func(*mountrecord.Record) bool) []VolumeStatus {
	s := VolumeStatus{Pod: r.Pod, PodUID: r.PodUID, NodeName: r.NodeName, Plugin: r.Plugin, Source: r.Source, PersistentVolume: persistentVolumeOf(r), Claim: claimOf(r), Path: r.Path, State: StateMounted, Found: r.Rebuilt}
	reason := reasonOf(r, mounted, gone)
	switch {
	case r.Detached != nil:
		s.State, s.Since = StateDetached, r.Detached.At
	case reason == ErrOutcomeUnknown:
		s.State = StatePending
	case reason == mountrecord.ErrNotMountedAnymore, reason == ErrDirectoryGone:
		s.State = StateFailed
	}
	if r.Confirmed != nil {
		s.Since, s.Duration, s.Device = r.Confirmed.At, r.Confirmed.Took, deviceNodeOf(r)
	}
	rows := make([]VolumeStatus, len(r.Volumes))
	for i, name := range r.Volumes {
		rows[i] = s
		rows[i].Volume = name
		if reason != nil {
			rows[i].Err = fmt.Errorf("volume %q of pod %s: %w", name, r.Pod, reason)
		}
	}
	return rows
}

// reasonOf says why a recorded volume may not be usable, or nil.
func reasonOf(r *mountrecord.Record, mounted rootdir.Mounts, gone func(*mountrecord.Record) bool) error {
	switch c := r.Confirmed; {
	case r.Detached != nil:
		return r.Detached.Recall(mounted.Mounter)
	case c == nil:
		return ErrOutcomeUnknown
	case c.MountPoint && !mounted.Has(r.Path), c.Device != nil && !mounted.Has(c.Device.Bind):
		return mountrecord.ErrNotMountedAnymore
	case gone(r):
		return ErrDirectoryGone
	}
	return nil
}

// goneFrom returns a function that tells whether a recorded volume's place below the
// root directory is in no list of those that are there. Without a list, none is gone.
func goneFrom(rootDir string, dirs []rootdir.Key, failed error) func(*mountrecord.Record) bool {
	there := make(map[rootdir.Key]bool, len(dirs))
	for _, key := range dirs {
		there[key] = true
	}
	return func(r *mountrecord.Record) bool {
		return failed == nil && !there[rootdir.KeyOf(r)] && pathin.Strictly(rootdir.PodsDir(rootDir), r.Path)
	}
}

// noneGone is for those who do not look.
func noneGone(*mountrecord.Record) bool { return false }

func unknownStatus(rootDir string, key rootdir.Key) VolumeStatus {
	return VolumeStatus{PodUID: key.PodUID, Volume: key.Spec, Plugin: key.Plugin, Path: rootdir.VolumePlace(rootDir, key), State: StateFailed, Found: true,
		Err: fmt.Errorf("volume %q of the pod with UID %q: %w", key.Spec, key.PodUID, ErrNoRecord)}
}
