package volumestatus

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumesource"
)

// State is how far a volume is.
type State string

// The states.
const (
	// StatePending: an operation is under way, or its outcome is not known, or
	// the volume waits for a report about its attachment, or for its claim to be
	// bound; then Err says so.
	StatePending State = "pending"
	// StateMounted: containers can use the volume.
	StateMounted State = "mounted"
	// StateFailed: the last operation failed; Err says why.
	StateFailed State = "failed"
	// StateDetached: the volume's mount had to be detached lazily, and its file
	// system may still be in use; Err says which. The volume stays until it is
	// gone.
	StateDetached State = "detached"
	// StateUnused: no container of the pod uses the volume, so it is not mounted and
	// nothing that it needs is looked up, as with the kubelet; see
	// podstate.UsesVolume. It is mounted once the pod is declared with a
	// container that uses it, for example an ephemeral one. If the last such
	// container leaves the declaration, it stays mounted until the pod goes.
	StateUnused State = "not used"
	// StateUnmounted: the volume is gone. Only subscribers see it.
	StateUnmounted State = "unmounted"
)

// Status is the state of one volume of one pod. It is a copy; the caller
// owns it.
type Status struct {
	Pod    types.NamespacedName
	PodUID types.UID
	// NodeName is the node that the volume was mounted for, as its record has it;
	// empty while nothing was tried, and where the record does not say. Package nodeagent
	// sets it for pods that wait for claims.
	NodeName types.NodeName
	// Volume is the volume's name in the pod.
	Volume string
	// Plugin is the plugin's name; empty while none is found.
	Plugin string
	// Source says where the data comes from, for people.
	Source string
	// PersistentVolume is the name of the one that the volume is; empty: it is none, or none is
	// known yet. Claim is the claim that it was mounted for.
	PersistentVolume string
	Claim            types.NamespacedName
	// Migrated: it was translated from an in-tree source to CSI.
	Migrated bool
	State    State
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
	// Kept: it is not wanted, and stays all the same until its pod is declared or deleted, or
	// every pod of the node is known without it.
	Kept bool
	// Found: it is known from its directory or an unreadable record alone, and
	// Volume is the directory's name: for a PersistentVolume that is its own, not
	// the pod's. A set-up of the pod's volumes finds out whose it is.
	Found bool
	// Operation is the one under way, "set-up" or "tear-down", and Began its begin;
	// without one, empty and zero. An operation that hangs keeps one thread.
	Operation string
	Began     time.Time
	// Progress is how far a set-up is that takes long; its zero value: nothing was said.
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
	// Condition is what the storage of a mounted volume said of it when Manager.Metrics asked
	// last; nil: it was not asked, or says nothing. The caller must not change it.
	Condition *volume.Condition
}

// ServerTrouble says in a few words what trouble the volume's server has; empty
// where none is known.
func (s Status) ServerTrouble() string {
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
