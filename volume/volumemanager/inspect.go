package volumemanager

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/journal"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
)

var (
	// ErrNotMountedAnymore says that a volume was mounted once, and the mount
	// table no longer shows it; the machine may have restarted.
	ErrNotMountedAnymore = errors.New("it was mounted, but the mount table no longer shows it; set the pod up again")
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
	if err := CheckRoot(rootDir); err != nil {
		return nil, err
	}
	mounted, err := newMounts(rootDir, table)
	if err != nil {
		return nil, err
	}
	held, damage, err := journal.Read(recordsPath(rootDir))
	if err != nil {
		return nil, &RootError{rootDir, err}
	}
	var errs []error
	if damaged := newDamagedError(rootDir, damage); damaged != nil {
		errs = append(errs, damaged)
	}
	found, unreadable := decodeRecords(rootDir, held)
	dirs, err := volumeDirs(rootDir)
	if err != nil {
		errs = append(errs, err)
	}
	gone := goneFrom(rootDir, dirs, err)
	known := make(map[volumeKey]bool, len(found))
	rows := make([]VolumeStatus, 0, len(found))
	for _, record := range found {
		known[keyOf(record)] = true
		rows = append(rows, statusOf(record, mounted, gone)...)
	}
	for _, err := range unreadable {
		errs = append(errs, err)
		if key, ok := parseKey(err.Volume); ok {
			known[key] = true
			rows = append(rows, err.status(key))
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
func statusOf(r *mountrecord.Record, mounted mounts, gone func(*mountrecord.Record) bool) []VolumeStatus {
	s := VolumeStatus{Pod: r.Pod, PodUID: r.PodUID, NodeName: r.NodeName, Plugin: r.Plugin, Source: r.Source, PersistentVolume: persistentVolumeOf(r), Claim: claimOf(r), Path: r.Path, State: StateMounted, Found: r.Rebuilt}
	reason := reasonOf(r, mounted, gone)
	switch {
	case r.Detached != nil:
		s.State, s.Since = StateDetached, r.Detached.At
	case reason == ErrOutcomeUnknown:
		s.State = StatePending
	case reason == ErrNotMountedAnymore, reason == ErrDirectoryGone:
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
func reasonOf(r *mountrecord.Record, mounted mounts, gone func(*mountrecord.Record) bool) error {
	switch c := r.Confirmed; {
	case r.Detached != nil:
		return r.Detached.Recall(mounted.mounter)
	case c == nil:
		return ErrOutcomeUnknown
	case c.MountPoint && !mounted.has(r.Path), c.Device != nil && !mounted.has(c.Device.Bind):
		return ErrNotMountedAnymore
	case gone(r):
		return ErrDirectoryGone
	}
	return nil
}

// goneFrom returns a function that tells whether a recorded volume's place below the
// root directory is in no list of those that are there. Without a list, none is gone.
func goneFrom(rootDir string, dirs []volumeKey, failed error) func(*mountrecord.Record) bool {
	there := make(map[volumeKey]bool, len(dirs))
	for _, key := range dirs {
		there[key] = true
	}
	return func(r *mountrecord.Record) bool {
		return failed == nil && !there[keyOf(r)] && pathin.Strictly(podsDir(rootDir), r.Path)
	}
}

// noneGone is for those who do not look.
func noneGone(*mountrecord.Record) bool { return false }

// volumePlace is where a volume is that is known by its key alone.
func volumePlace(rootDir string, key volumeKey) string {
	place := func(kind string) string {
		return filepath.Join(podsDir(rootDir), string(key.podUID), kind, volume.EscapeQualifiedName(key.plugin), key.spec)
	}
	path := place("volumes")
	if _, err := os.Readlink(place("volumeDevices")); err == nil {
		path = place("volumeDevices")
	}
	return path
}

func unknownStatus(rootDir string, key volumeKey) VolumeStatus {
	return VolumeStatus{PodUID: key.podUID, Volume: key.spec, Plugin: key.plugin, Path: volumePlace(rootDir, key), State: StateFailed, Found: true,
		Err: fmt.Errorf("volume %q of the pod with UID %q: %w", key.spec, key.podUID, ErrNoRecord)}
}

func podsDir(rootDir string) string { return filepath.Join(rootDir, "pods") }

// volumeDirs lists the volumes that have a directory, or a link to a device, by
// names alone.
func volumeDirs(rootDir string) ([]volumeKey, error) {
	var keys []volumeKey
	var errs []error
	list := func(dir string) []fs.DirEntry {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		return entries
	}
	for _, pod := range list(podsDir(rootDir)) {
		for _, kind := range []string{"volumes", "volumeDevices"} {
			volumes := filepath.Join(podsDir(rootDir), pod.Name(), kind)
			for _, plugin := range list(volumes) {
				for _, name := range list(filepath.Join(volumes, plugin.Name())) {
					if strings.HasPrefix(name.Name(), volume.DeletingPrefix) {
						continue // the rest of a volume that still has its record
					}
					keys = append(keys, volumeKey{types.UID(pod.Name()), volume.UnescapeQualifiedName(plugin.Name()), name.Name()})
				}
			}
		}
	}
	return keys, errors.Join(errs...)
}
