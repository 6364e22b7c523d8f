package objectstest

import (
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/claimbinding"
)

// Bindings checks every stored version of claims and volumes against rules that
// must hold at every moment. A claim never gets a second volume. A volume whose
// data one claim saw is never shown to another. A claim sees a volume when a node
// would mount it ([claimbinding.Check]). All methods are safe for concurrent
// use.
type Bindings struct {
	forGood bool

	mu      sync.Mutex
	claims  map[types.UID]*v1.PersistentVolumeClaim // as they are stored now
	volumes map[string]*v1.PersistentVolume
	named   map[types.UID]string    // the volume that a claim was given
	owner   map[types.UID]types.UID // the claim that a volume was shown to
	given   map[types.UID]types.UID // the claim that a volume was given to last
	had     map[types.UID]string    // the volume that was given to a claim last
	first   error
}

// NewBindings returns empty bindings. If they are for good, the rules are
// stricter, whether a claim saw the volume or not: a volume is never given to a
// second claim, or taken from its claim, and a claim never gets two volumes.
func NewBindings(forGood bool) *Bindings {
	b := &Bindings{forGood: forGood, named: make(map[types.UID]string), owner: make(map[types.UID]types.UID), given: make(map[types.UID]types.UID),
		had: make(map[types.UID]string)}
	b.forget()
	return b
}

func (b *Bindings) forget() {
	b.claims, b.volumes = make(map[types.UID]*v1.PersistentVolumeClaim), make(map[string]*v1.PersistentVolume)
}

// Observe is called with each stored version of each object, and with each object
// that is gone. It ignores objects other than claims and volumes. The object must
// not be changed afterwards.
func (b *Bindings) Observe(object metav1.Object, gone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !gone {
		b.stored(object)
		return
	}
	switch o := object.(type) {
	case *v1.PersistentVolumeClaim:
		delete(b.claims, o.UID)
	case *v1.PersistentVolume:
		delete(b.volumes, o.Name)
	}
}

// Now is for stores that do not report each version. It takes all stored claims
// and volumes.
func (b *Bindings) Now(claims []*v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget()
	for _, pv := range volumes {
		b.stored(pv)
	}
	for _, claim := range claims {
		b.stored(claim)
	}
}

// Emptied says that the data of a volume's last claim is gone.
func (b *Bindings) Emptied(pv *v1.PersistentVolume) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.owner, pv.UID)
}

// Err returns the first broken rule, or nil.
func (b *Bindings) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.first
}

// Bound returns the number of claims whose volume a node would mount now.
func (b *Bindings) Bound() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, claim := range b.claims {
		if claimbinding.Check(claim, b.volumes[claim.Spec.VolumeName]) == nil {
			n++
		}
	}
	return n
}

func (b *Bindings) wrong(format string, args ...any) {
	if b.first == nil {
		b.first = fmt.Errorf(format, args...)
	}
}

func (b *Bindings) stored(object metav1.Object) {
	switch o := object.(type) {
	case *v1.PersistentVolumeClaim:
		if before := b.named[o.UID]; before != "" && before != o.Spec.VolumeName {
			b.wrong("claim %s had volume %q and now %q", o.Name, before, o.Spec.VolumeName)
		}
		b.claims[o.UID], b.named[o.UID] = o, o.Spec.VolumeName
		b.pair(o, b.volumes[o.Spec.VolumeName])
	case *v1.PersistentVolume:
		b.volumes[o.Name] = o
		claim := types.UID("")
		if o.Spec.ClaimRef != nil {
			claim = o.Spec.ClaimRef.UID
		}
		if b.forGood {
			b.give(o, claim)
		}
		b.pair(b.claims[claim], o)
	}
}

// pair checks a claim and a volume. Either may be nil.
func (b *Bindings) pair(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
	if claim == nil || pv == nil || claim.Status.Phase != v1.ClaimBound || claimbinding.Check(claim, pv) != nil {
		return
	}
	if owner, had := b.owner[pv.UID]; had && owner != claim.UID {
		b.wrong("volume %s had the data of claim %s, and is now shown to %s (%s)", pv.Name, owner, claim.Name, claim.UID)
	}
	b.owner[pv.UID] = claim.UID
}

// give records that a volume is given to a claim; empty: to none.
func (b *Bindings) give(pv *v1.PersistentVolume, claim types.UID) {
	before := b.given[pv.UID]
	if before == claim {
		return
	}
	if before != "" {
		b.wrong("volume %s was given to claim %s, and now to %q", pv.Name, before, claim)
	}
	if other := b.had[claim]; other != "" {
		b.wrong("claim %s is given volume %s, and has %s", claim, pv.Name, other)
	}
	b.given[pv.UID], b.had[claim] = claim, pv.Name
}
