// Package statusrows makes the rows of package volumestatus, and the errors that say what they
// wait for: from what is found below a root directory, and for calls of the manager that wait.
package statusrows

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
	"github.com/podvol/podvol/volume/volumemanager/volumestatus"
)

// Inspect returns the volumes below a root directory, ordered by pod and volume,
// as the manager's Inspect does.
func Inspect(rootDir string, table mount.Table) ([]volumestatus.Status, error) {
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
	rows := make([]volumestatus.Status, 0, len(found))
	for _, record := range found {
		known[rootdir.KeyOf(record)] = true
		rows = append(rows, Recorded(record, mounted, gone)...)
	}
	for _, err := range unreadable {
		errs = append(errs, err)
		if key, ok := rootdir.ParseKey(err.Volume); ok {
			known[key] = true
			rows = append(rows, volumestatus.Status{PodUID: key.PodUID, Volume: key.Spec, Plugin: key.Plugin, Path: err.Path, State: volumestatus.StateFailed, Found: true, Err: err})
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

// Compare orders rows by pod and volume.
func Compare(a, b volumestatus.Status) int {
	return cmp.Or(
		strings.Compare(a.Pod.Namespace, b.Pod.Namespace),
		strings.Compare(a.Pod.Name, b.Pod.Name),
		cmp.Compare(a.PodUID, b.PodUID),
		strings.Compare(a.Volume, b.Volume),
	)
}

// Recorded judges a recorded volume by its confirmation and the mount table:
// one row for each of its names in the pod.
func Recorded(r *mountrecord.Record, mounted rootdir.Mounts, gone func(*mountrecord.Record) bool) []volumestatus.Status {
	s := volumestatus.Status{Pod: r.Pod, PodUID: r.PodUID, NodeName: r.NodeName, Plugin: r.Plugin, Source: r.Source, PersistentVolume: r.PersistentVolumeName(), Claim: r.Claim(), Path: r.Path, State: volumestatus.StateMounted, Found: r.Rebuilt}
	reason := rootdir.ReasonOf(r, mounted, gone)
	switch {
	case r.Detached != nil:
		s.State, s.Since = volumestatus.StateDetached, r.Detached.At
	case reason == rootdir.ErrOutcomeUnknown:
		s.State = volumestatus.StatePending
	case reason == mountrecord.ErrNotMountedAnymore, reason == rootdir.ErrDirectoryGone:
		s.State = volumestatus.StateFailed
	}
	if r.Confirmed != nil {
		s.Since, s.Duration, s.Device = r.Confirmed.At, r.Confirmed.Took, r.DeviceNode()
	}
	rows := make([]volumestatus.Status, len(r.Volumes))
	for i, name := range r.Volumes {
		rows[i] = s
		rows[i].Volume = name
		if reason != nil {
			rows[i].Err = fmt.Errorf("volume %q of pod %s: %w", name, r.Pod, reason)
		}
	}
	return rows
}

func unknownStatus(rootDir string, key rootdir.Key) volumestatus.Status {
	return volumestatus.Status{PodUID: key.PodUID, Volume: key.Spec, Plugin: key.Plugin, Path: rootdir.VolumePlace(rootDir, key), State: volumestatus.StateFailed, Found: true,
		Err: fmt.Errorf("volume %q of the pod with UID %q: %w", key.Spec, key.PodUID, rootdir.ErrNoRecord)}
}
