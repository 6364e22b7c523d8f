package reservation

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// Kind says why an entry has what it has. The package comment lists what each has.
type Kind int

// The kinds of entries.
const (
	// Assumed is a claim that counts as bound to a volume before the API says so.
	Assumed Kind = iota
	// Provisioning is a claim for which a placement has storage made.
	Provisioning
	// ForPod is a claim that only one pod may use.
	ForPod
	// Writing is the turn to write a volume.
	Writing
	// Making is an operation that makes a volume's storage.
	Making
	// Removing is an operation that empties or deletes a volume's storage.
	Removing
)

// thing is what one entry at most has of a volume or a claim.
type thing int

const (
	data    thing = iota // of a volume
	storage              // of a volume, which need not exist yet
	object               // of a volume
	choice               // of a claim: its volume, or where that is made
	use                  // of a claim's name
)

// resource is one thing of one volume or claim.
type resource struct {
	of     thing
	volume string
	claim  index.ClaimID
}

// Pod is one pod, and not a later one of its name.
type Pod struct {
	types.NamespacedName
	UID types.UID
}

// Entry says who has something now. It is made by a [Table] and never changed; its methods
// may be called from several goroutines, and the first that ends it counts.
type Entry struct {
	kind      Kind
	claim     index.ClaimID
	pod       Pod
	name      string               // the volume's
	volume    *v1.PersistentVolume // of Assumed
	table     *Table
	resources []resource
	turn      chan struct{} // closed when it is no longer waited for; nil: it was not
}

// Kind returns why the entry has something.
func (e *Entry) Kind() Kind { return e.kind }

// Claim returns the claim that the entry is for: of Assumed, Provisioning and ForPod, the
// latter without a UID.
func (e *Entry) Claim() index.ClaimID { return e.claim }

// Pod returns the pod that a claim is kept for ([ForPod]).
func (e *Entry) Pod() Pod { return e.pod }

// Volume returns the volume of an [Assumed] entry as it was when it was reserved: the
// binding is to be written over this resourceVersion.
func (e *Entry) Volume() *v1.PersistentVolume { return e.volume }

// String says who has it and why.
func (e *Entry) String() string {
	switch e.kind {
	case Assumed:
		return e.claim.String() + ", for which it is reserved"
	case Provisioning:
		return "a pod that is being placed, for which its storage is to be made"
	case ForPod:
		return "pod " + e.pod.String() + ", which alone may use it"
	case Writing:
		return "a writer"
	case Making:
		return "the operation that makes its storage"
	}
	return "an earlier claim, whose data is being removed"
}

// Assume ends an [Assumed] entry whose binding the API has stored: pv is the API's answer,
// which counts from now on, before any watch tells of it.
func (e *Entry) Assume(pv *v1.PersistentVolume) {
	t := e.table
	t.mu.Lock()
	var asked []asker
	if t.has(e) {
		t.Index.Put(pv) // first, so that the volume is free at no time
		asked = t.end(e)
	}
	t.mu.Unlock()
	t.wake(asked)
}

// Forget ends an entry, and gives back what it has: a volume that a claim has not taken is
// given to others, and claims that mean a volume whose data is removed are enqueued. An
// entry that has ended stays so.
func (e *Entry) Forget() {
	t := e.table
	t.mu.Lock()
	had := t.has(e)
	asked := t.end(e)
	t.mu.Unlock()
	t.wake(asked)
	switch {
	case !had:
	case e.kind == Assumed:
		t.Release(e.name, e.claim.NamespacedName)
	case e.kind == Removing:
		t.enqueueClaimsOf(e.name)
	}
}
