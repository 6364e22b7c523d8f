package volumemanager

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
	"github.com/podvol/podvol/volume/volumesource"
)

// VolumeState is how far a volume is.
type VolumeState string

// The states.
const (
	// StatePending: an operation is under way, or its outcome is not known, or
	// the volume waits for a report about its attachment, or for its claim to be
	// bound; then Err says so.
	StatePending VolumeState = "pending"
	// StateMounted: containers can use the volume.
	StateMounted VolumeState = "mounted"
	// StateFailed: the last operation failed; Err says why.
	StateFailed VolumeState = "failed"
	// StateDetached: the volume's mount had to be detached lazily, and its file
	// system may still be in use; Err says which. The volume stays until it is
	// gone.
	StateDetached VolumeState = "detached"
	// StateUnused: no container of the pod uses the volume, so it is not mounted and
	// nothing that it needs is looked up, as with the kubelet; see
	// podstate.UsesVolume. It is mounted once the pod is declared with a
	// container that uses it, for example an ephemeral one. If the last such
	// container leaves the declaration, it stays mounted until the pod goes.
	StateUnused VolumeState = "not used"
	// StateUnmounted: the volume is gone. Only subscribers see it.
	StateUnmounted VolumeState = "unmounted"
)

// VolumeStatus is the state of one volume of one pod. It is a copy; the caller
// owns it.
type VolumeStatus struct {
	Pod    types.NamespacedName
	PodUID types.UID
	// NodeName is the node that the volume was mounted for, as its record has it;
	// empty while nothing was tried, and where the record does not say.
	NodeName types.NodeName
	// Volume is the volume's name in the pod.
	Volume string
	// Plugin is the plugin's name; empty while none is found.
	Plugin string
	// Source says where the data comes from, for people.
	Source string
	// PersistentVolume is the name of the one that the volume is; empty for other
	// volumes, and where none is known yet. Claim is the claim that it was mounted
	// for.
	PersistentVolume string
	Claim            types.NamespacedName
	State            VolumeState
	// Path is where the pod's containers find the volume; empty if it has none.
	Path string
	// Device is the node of a block volume's device, once it is mapped; Path is
	// the pod's link to it. Empty for file systems.
	Device string
	// Since is when the state was reached.
	Since time.Time
	// Duration is what the last finished operation took.
	Duration time.Duration
	// Wanted: the pod is declared with the volume, and not deleted.
	Wanted bool
	// Found: it is known from its directory or an unreadable record alone, and
	// Volume is the directory's name: for a PersistentVolume that is its own, not
	// the pod's. A set-up of the pod's volumes finds out whose it is.
	Found bool
	// Operation is the one under way, "set-up" or "tear-down", and Began its begin;
	// without one, empty and zero. An operation that hangs keeps one thread.
	Operation string
	Began     time.Time
	// Progress is how far a set-up is that takes long; its zero value: nothing
	// was said.
	Progress volume.Progress
	// Ended is the operation whose outcome this status is: "set-up" or
	// "tear-down", successful unless Err says otherwise, after Duration. Only
	// subscribers see it, once for each operation and volume.
	Ended string
	// Failures counts the attempts that failed since the last success or the
	// last new reason to try; NextRetry is when the next one is due, zero if
	// none is, as for a claim that is not bound: its change is watched for.
	Failures  int
	NextRetry time.Time
	// Err is the last operation's error, nil after a success. A mounted volume
	// has one where its last refresh failed.
	Err error
	// Attachment is what an attachable volume waits for before it can be
	// mounted, or that it was detached while it is mounted; nil otherwise.
	Attachment *AttachmentError
	// Server is what the plugin knows of the server of the volume's data, from the
	// mounts of all pods' volumes; its Source is empty where the volume has no
	// server, or its plugin keeps no book of them. A volume that is mounted has it
	// too, and is not affected.
	Server volumesource.Health
}

func compareStatus(a, b VolumeStatus) int {
	return cmp.Or(
		strings.Compare(a.Pod.Namespace, b.Pod.Namespace),
		strings.Compare(a.Pod.Name, b.Pod.Name),
		cmp.Compare(a.PodUID, b.PodUID),
		strings.Compare(a.Volume, b.Volume),
	)
}

// PodVolumes are the volumes of one pod, in the pod's order.
type PodVolumes struct {
	Pod     types.NamespacedName
	PodUID  types.UID
	Volumes []VolumeStatus
}

// Path returns where the pod's containers find the volume of this name, and
// whether it is mounted.
func (p *PodVolumes) Path(volumeName string) (string, bool) {
	i := slices.IndexFunc(p.Volumes, func(s VolumeStatus) bool { return s.Volume == volumeName })
	if i < 0 || p.Volumes[i].State != StateMounted {
		return "", false
	}
	return p.Volumes[i].Path, true
}

// PodError collects what went wrong with the volumes of one pod.
type PodError struct {
	// Op is "set up" or "tear down".
	Op     string
	Pod    types.NamespacedName
	PodUID types.UID
	// Errs are the failures, one a volume, in the pod's order.
	Errs []error
}

func (e *PodError) Error() string {
	pod := "pod " + e.Pod.String()
	if e.Pod.Name == "" {
		pod = "the pod with UID " + string(e.PodUID)
	}
	lines := make([]string, 0, 1+len(e.Errs))
	lines = append(lines, fmt.Sprintf("%d of the volumes of %s could not be %s:", len(e.Errs), pod, past(e.Op)))
	for _, err := range e.Errs {
		lines = append(lines, err.Error())
	}
	return strings.Join(lines, "\n")
}

func past(op string) string {
	if op == podTearDown {
		return "torn down"
	}
	return op // "set up" is its own participle
}

// Unwrap returns the failures.
func (e *PodError) Unwrap() []error { return e.Errs }

const (
	podSetUp    = "set up"
	podTearDown = "tear down"
)

var (
	// ErrDirectoryGone says that a volume that is no mount of its own was set up
	// once, and its directory below the root directory was removed since.
	ErrDirectoryGone = rootdir.ErrDirectoryGone
	// ErrVanished says that a volume's mount is gone although the manager has not
	// unmounted it.
	ErrVanished = errors.New("its mount has vanished")
	// ErrOutcomeUnknown says that a set-up was begun and never confirmed.
	ErrOutcomeUnknown = rootdir.ErrOutcomeUnknown
	// ErrNoRecord says that a volume's directory has no record.
	ErrNoRecord = rootdir.ErrNoRecord
)

// Inspect returns the volumes below a root directory, ordered by pod and volume,
// from records, directories and mount table. It neither takes the root's lock nor
// touches a volume's file system. The error joins failures to read, such as of
// damaged records (*[DamagedError], *[UnreadableRecordError]); the rows are valid
// beside it, but there may be more. A missing root has no volumes; one that
// [CheckRoot] refuses is not looked into.
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
	gone := rootdir.GoneFrom(rootDir, dirs, err)
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
	s := VolumeStatus{Pod: r.Pod, PodUID: r.PodUID, NodeName: r.NodeName, Plugin: r.Plugin, Source: r.Source, PersistentVolume: r.PersistentVolumeName(), Claim: r.Claim(), Path: r.Path, State: StateMounted, Found: r.Rebuilt}
	reason := rootdir.ReasonOf(r, mounted, gone)
	switch {
	case r.Detached != nil:
		s.State, s.Since = StateDetached, r.Detached.At
	case reason == ErrOutcomeUnknown:
		s.State = StatePending
	case reason == mountrecord.ErrNotMountedAnymore, reason == ErrDirectoryGone:
		s.State = StateFailed
	}
	if r.Confirmed != nil {
		s.Since, s.Duration, s.Device = r.Confirmed.At, r.Confirmed.Took, r.DeviceNode()
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

func unknownStatus(rootDir string, key rootdir.Key) VolumeStatus {
	return VolumeStatus{PodUID: key.PodUID, Volume: key.Spec, Plugin: key.Plugin, Path: rootdir.VolumePlace(rootDir, key), State: StateFailed, Found: true,
		Err: fmt.Errorf("volume %q of the pod with UID %q: %w", key.Spec, key.PodUID, ErrNoRecord)}
}

// ServerTrouble says in a few words what trouble the volume's server has; empty
// where none is known.
func (s VolumeStatus) ServerTrouble() string {
	h := s.Server
	if h.Source == "" || h.Answers {
		return ""
	}
	text := fmt.Sprintf("%s has not answered since %s", h.Source, h.Since.UTC().Format(time.RFC3339))
	if wait := time.Until(h.RetryAt); wait > 0 {
		return text + fmt.Sprintf("; it is tried again in %s", wait.Round(time.Millisecond))
	}
	return text + "; it is tried again by the next mount from it"
}

// wrap makes sure that an error names the volume as the pod does, and the pod;
// nil stays nil.
func wrap(r *mountrecord.Record, volumeName, op string, err error) error {
	if err == nil {
		return nil
	}
	return (&volume.Error{Op: op, Plugin: r.Plugin, Volume: volumeName, Pod: r.Pod, PodUID: r.PodUID}).About(err)
}
