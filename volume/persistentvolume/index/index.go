// Package index finds the volume of a claim, and the claims that wait for a volume,
// in a time that does not grow with the number of either:
//
//   - [Index] holds all PersistentVolumes. [Index.Match] finds the volume that fits a
//     claim best.
//   - [Waiting] holds the claims for which there is no volume, so that a new volume is
//     given to one of them instead of being tried for all.
//   - [UnboundError] says why no volume fits, with the number of volumes per reason.
//
// Which volume fits is decided as Kubernetes' PersistentVolume controller does.
package index

import (
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

// ClaimID is one claim, and not a later one of its name.
type ClaimID struct {
	types.NamespacedName
	UID types.UID
}

// IDOf returns the identity of a claim.
func IDOf(pvc *v1.PersistentVolumeClaim) ClaimID { return ClaimID{pvapi.NameOf(pvc), pvc.UID} }

// Index is all PersistentVolumes, kept so that a claim's volume is found ([Index.Match]) in a
// time that does not grow with their number.
//
//   - Volumes come and go by [Index.Put] and [Index.Delete]; [Index.PutClaim] tells which
//     are left to the claims that name them, [Index.Hold] which no claim gets now.
//   - Free volumes are ordered by size in lists for each class, volume mode, set of access
//     modes, node and label. A claim's volume, and one that is released or being deleted,
//     is in none.
//   - A selector or a node affinity that lists no values (NotIn, Exists of a node's label)
//     is checked volume by volume.
//   - All methods are safe for concurrent use and do no I/O. Objects that are passed or
//     returned must not be changed any more.
type Index struct {
	mu      sync.RWMutex
	volumes map[string]kept
	// claimRefs are the volumes whose claimRef has a name, whatever its UID.
	claimRefs map[types.NamespacedName]few[string, bool]
	// Each volume is in one of these.
	shelves                           map[shelfKey]map[string]*shelf
	taken, made, unavailable, invalid ordered
	// The rest is known by the volume's name, whether it exists or not.
	owners owners
}

// kept is a volume and where it is: on the side or on a shelf.
type kept struct {
	item
	side  *ordered
	shelf *shelf
}

// New returns an index of some volumes.
func New(volumes ...*v1.PersistentVolume) *Index {
	x := &Index{
		volumes:   make(map[string]kept, len(volumes)),
		claimRefs: make(map[types.NamespacedName]few[string, bool]),
		shelves:   make(map[shelfKey]map[string]*shelf),
		owners:    newOwners(),
	}
	for _, pv := range volumes {
		x.Put(pv)
	}
	return x
}

// Put adds a volume, or replaces the one of its name. An earlier version of
// the same volume than the index has, by resourceVersion, is ignored: events
// may arrive after the answer to a write.
func (x *Index) Put(pv *v1.PersistentVolume) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.put(pv)
}

func (x *Index) put(pv *v1.PersistentVolume) {
	old, exists := x.volumes[pv.Name]
	if exists && (old.pv == pv || old.pv.UID == pv.UID && isOlder(pv, old.pv)) {
		return
	}
	x.change(pv.Name, func() {
		x.unlink(old.pv)
		x.volumes[pv.Name] = kept{item: itemOf(pv)}
		if name, ok := pvapi.ClaimRefOf(pv); ok {
			x.claimRefs[name] = x.claimRefs[name].put(pv.Name, true)
		}
	})
}

func isOlder(pv, than *v1.PersistentVolume) bool {
	c, err := kubeapi.CompareResourceVersion(pv.ResourceVersion, than.ResourceVersion)
	return err == nil && c < 0
}

// Delete removes a volume, if it is there. The claims that name it, and that it is
// held, stay: a later one of its name may have the same data.
func (x *Index) Delete(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.change(name, func() {
		x.unlink(x.volumes[name].pv)
		delete(x.volumes, name)
	})
}

// Volume returns the volume of a name.
func (x *Index) Volume(name string) (*v1.PersistentVolume, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	it, ok := x.volumes[name]
	return it.pv, ok
}

// Free returns a volume that no claim has, or is about to have.
func (x *Index) Free(name string) (*v1.PersistentVolume, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	it, ok := x.volumes[name]
	if !ok || it.side != nil {
		return nil, false
	}
	return it.pv, true
}

// Meaning returns the volumes but one whose claimRef has a name, whatever its
// UID.
func (x *Index) Meaning(claim types.NamespacedName, but string) (others []string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for name := range x.claimRefs[claim].all() {
		if name != but {
			others = append(others, name)
		}
	}
	slices.Sort(others)
	return others
}

// ClaimsOf returns the claims but one that name a volume, and the one that it
// means.
func (x *Index) ClaimsOf(volumeName string, but types.NamespacedName) (others []types.NamespacedName) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for name := range x.owners.named[volumeName].all() {
		if name != but {
			others = append(others, name)
		}
	}
	if it, ok := x.volumes[volumeName]; ok {
		if claim, ok := pvapi.ClaimRefOf(it.pv); ok && claim != but {
			others = append(others, claim)
		}
	}
	return others
}

// PutClaim tells of a claim as it is now. A volume that a claim names in
// spec.volumeName, and that names no claim itself, is left to the claims that
// name it.
func (x *Index) PutClaim(claim *v1.PersistentVolumeClaim) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rename(pvapi.NameOf(claim), claim.UID, claim.Spec.VolumeName)
}

// DeleteClaim tells that a claim is gone.
func (x *Index) DeleteClaim(name types.NamespacedName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rename(name, "", "")
}

func (x *Index) rename(name types.NamespacedName, uid types.UID, volumeName string) {
	if x.owners.isNamed(name, uid, volumeName) {
		return
	}
	if old, ok := x.owners.names[name]; ok {
		x.change(old, func() { x.owners.unname(name, old) })
	}
	if volumeName != "" {
		x.change(volumeName, func() { x.owners.name(name, uid, volumeName) })
	}
}

// Hold keeps the volume of a name from every claim, also a volume that comes later. by says
// for whom, in messages; "" holds it no longer.
func (x *Index) Hold(volumeName, by string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.change(volumeName, func() {
		if by != "" {
			x.owners.held[volumeName] = by
		} else {
			delete(x.owners.held, volumeName)
		}
	})
}

// change calls f, which alone changes the known state of a volume, and moves the
// volume to the list where it belongs then.
func (x *Index) change(volumeName string, f func()) {
	old := x.volumes[volumeName]
	f()
	now, exists := x.volumes[volumeName]
	var side *ordered
	if exists {
		side = x.aside(now.pv)
	}
	switch {
	case exists && old.pv == now.pv && old.side == side: // on a shelf, that is the same
		x.volumes[volumeName] = old
		return
	case side != nil && old.side == side && old.Size.Compare(now.Size) == 0:
		side.swap(now.item)
		now.side = side
		x.volumes[volumeName] = now
		return
	}
	if old.pv != nil {
		x.unshelve(old)
	}
	if exists {
		x.volumes[volumeName] = x.shelve(now.item, side)
	}
}

// Swap makes another version of a volume the one that is kept; nothing in it
// differs.
func (x *Index) Swap(pv *v1.PersistentVolume) {
	x.mu.Lock()
	defer x.mu.Unlock()
	old, exists := x.volumes[pv.Name]
	if !exists || old.side == nil || old.pv.UID != pv.UID || old.pv.ResourceVersion != pv.ResourceVersion {
		return
	}
	old.pv = pv
	old.side.swap(old.item)
	x.volumes[pv.Name] = old
}

func (x *Index) unlink(pv *v1.PersistentVolume) {
	if pv == nil {
		return
	}
	if name, ok := pvapi.ClaimRefOf(pv); ok {
		if left := x.claimRefs[name].without(pv.Name); left.count > 0 {
			x.claimRefs[name] = left
		} else {
			delete(x.claimRefs, name)
		}
	}
}

func (x *Index) unshelve(k kept) {
	if k.side != nil {
		k.side.remove(k.item)
		return
	}
	s := k.shelf
	s.remove(k.item)
	if s.count > 0 {
		return
	}
	delete(x.shelves[s.key], s.name)
	if len(x.shelves[s.key]) == 0 {
		delete(x.shelves, s.key)
	}
}

func (x *Index) shelve(it item, side *ordered) kept {
	if side != nil {
		side.insert(it)
		return kept{item: it, side: side}
	}
	key := shelfOf(it.pv)
	if x.shelves[key] == nil {
		x.shelves[key] = make(map[string]*shelf)
	}
	name, modes := accessModesOf(it.pv.Spec.AccessModes)
	s := x.shelves[key][name]
	if s == nil {
		s = &shelf{key: key, name: name, accessModes: modes, lists: make(map[posting]*ordered), nodeKeys: make(map[mark]int)}
		x.shelves[key][name] = s
	}
	s.insert(it)
	return kept{item: it, shelf: s}
}

// isMadeForOne reports whether a volume was made for one claim, which has not left
// it: no other could ever have had it.
func isMadeForOne(pv *v1.PersistentVolume) bool {
	_, made := pvapi.Annotation(&pv.ObjectMeta, pvapi.AnnProvisionedBy)
	return made && pv.Spec.ClaimRef != nil && pv.Status.Phase != v1.VolumeReleased && pv.Status.Phase != v1.VolumeFailed
}

// aside returns where a volume is that is on no shelf; nil for a free one.
func (x *Index) aside(pv *v1.PersistentVolume) *ordered {
	switch {
	case isMadeForOne(pv):
		return &x.made
	case pv.Spec.ClaimRef != nil || x.owners.owned(pv.Name):
		return &x.taken
	case unavailable(pv, false) != "":
		return &x.unavailable
	case Unusable(pv) != "":
		return &x.invalid
	}
	return nil
}
