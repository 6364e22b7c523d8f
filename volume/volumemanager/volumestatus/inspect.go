package volumestatus

import (
	"errors"
	"fmt"
	"slices"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// Inspect returns the volumes below a root directory, ordered by pod and volume,
// from records, directories and mount table. It neither takes the root's lock nor
// touches a volume's file system. The error joins failures to read, such as of
// damaged records (the manager's DamagedError and UnreadableRecordError); the rows are valid
// beside it, but there may be more. A missing root has no volumes; one that
// its CheckRoot refuses is not looked into.
func Inspect(rootDir string, table mount.Table) ([]Status, error) {
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
	gone := rootdir.GoneFrom(rootDir, dirs, err)
	known := make(map[rootdir.Key]bool, len(found))
	rows := make([]Status, 0, len(found))
	for _, record := range found {
		known[rootdir.KeyOf(record)] = true
		rows = append(rows, RowsOf(record, mounted, gone)...)
	}
	for _, err := range unreadable {
		errs = append(errs, err)
		if key, ok := rootdir.ParseKey(err.Volume); ok {
			known[key] = true
			rows = append(rows, Status{PodUID: key.PodUID, Volume: key.Spec, Plugin: key.Plugin, Path: err.Path, State: StateFailed, Found: true, Err: err})
		}
	}
	for _, key := range dirs {
		if !known[key] {
			rows = append(rows, unknownStatus(rootDir, key))
		}
	}
	slices.SortFunc(rows, Compare)
	return rows, errors.Join(errs...)
}

// RowsOf judges a recorded volume by its confirmation and the mount table:
// one row for each of its names in the pod.
func RowsOf(r *mountrecord.Record, mounted rootdir.Mounts, gone func(*mountrecord.Record) bool) []Status {
	s := Status{Pod: r.Pod, PodUID: r.PodUID, NodeName: r.NodeName, Plugin: r.Plugin, Source: r.Source, PersistentVolume: r.PersistentVolumeName(), Claim: r.Claim(), Path: r.Path, State: StateMounted, Found: r.Rebuilt}
	reason := rootdir.ReasonOf(r, mounted, gone)
	switch {
	case r.Detached != nil:
		s.State, s.Since = StateDetached, r.Detached.At
	case reason == rootdir.ErrOutcomeUnknown:
		s.State = StatePending
	case reason == mountrecord.ErrNotMountedAnymore, reason == rootdir.ErrDirectoryGone:
		s.State = StateFailed
	}
	if r.Confirmed != nil {
		s.Since, s.Duration, s.Device = r.Confirmed.At, r.Confirmed.Took, r.DeviceNode()
	}
	rows := make([]Status, len(r.Volumes))
	for i, name := range r.Volumes {
		rows[i] = s
		rows[i].Volume = name
		if reason != nil {
			rows[i].Err = fmt.Errorf("volume %q of pod %s: %w", name, r.Pod, reason)
		}
	}
	return rows
}

func unknownStatus(rootDir string, key rootdir.Key) Status {
	return Status{PodUID: key.PodUID, Volume: key.Spec, Plugin: key.Plugin, Path: rootdir.VolumePlace(rootDir, key), State: StateFailed, Found: true,
		Err: fmt.Errorf("volume %q of the pod with UID %q: %w", key.Spec, key.PodUID, rootdir.ErrNoRecord)}
}
