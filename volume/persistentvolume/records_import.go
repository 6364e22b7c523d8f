package persistentvolume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// AwaitsClaimAnnotation is on a volume that was declared with the UID of its
// claim, or that a ledger of an earlier version keeps for one, until that claim
// has it: it has not been created here, so that its absence is not its deletion,
// and nothing is reclaimed. The value is the claim's UID. Whoever takes the
// claimRef away gives the volume to others.
const AwaitsClaimAnnotation = "podvol.io/awaits-claim"

// awaitsClaim reports whether the claim of a volume is to be created yet.
func awaitsClaim(pv *v1.PersistentVolume) bool {
	uid := pv.Annotations[AwaitsClaimAnnotation]
	return uid != "" && pv.Spec.ClaimRef != nil && string(pv.Spec.ClaimRef.UID) == uid
}

// imported are the bindings of a ledger that are not in the records of both claim
// and volume yet. The nil value has none.
type imported struct {
	*ledger
	mu   sync.Mutex
	left map[string]entry // by volume
}

// ImportLedger has the bindings honoured that versions without records have left
// in a directory. It must be called before anything is created. A claim that is
// created with an entry of its name gets its UID, and that volume; a volume gets
// that claimRef. The entry goes once both are recorded, and not before, however
// long one of them is declared by nobody: until then no other claim gets the
// volume, and it is not reclaimed. Nothing is done where there is no such
// directory; where there is one, it is locked until [RecordedObjects.Close], after
// waiting for who has it no longer than ctx.
//
// A file stays in it that has those versions refuse to start, which would know of
// no binding.
//
// After a crash at any point the next call goes on. The error is a
// *[DamagedRecordError] or a *[LedgerConflictError], which say what to do, or a
// failed write; then nothing may be bound, and what is left to do is to close.
func (r *RecordedObjects) ImportLedger(ctx context.Context, dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	l, err := openLedger(ctx, dir)
	if err != nil {
		return err
	}
	i := &imported{ledger: l, left: maps.Clone(l.byVolume)}
	if !r.ledger.CompareAndSwap(nil, i) {
		l.close()
		return fmt.Errorf("import the ledger of bindings %s: one has been imported already", dir)
	}
	if err := r.closeLedger(l); err != nil {
		return fmt.Errorf("import the ledger of bindings: %w", err)
	}
	ctx = context.WithoutCancel(ctx) // which may be for the lock alone
	for _, name := range slices.Sorted(maps.Keys(l.byVolume)) {
		if err := r.importEntry(ctx, l.byVolume[name]); err != nil {
			return fmt.Errorf("import the ledger of bindings: %w", err)
		}
	}
	return nil
}

// movedFile tells versions without records that what they wrote in the ledger has
// gone elsewhere. They refuse what they cannot understand: with an empty ledger
// they would bind every claim anew, and show one's data to another. No volume has
// such a name.
const movedFile = "-moved" + fileSuffix

// movedVersion is a schema that those versions do not know.
const movedVersion = ledgerVersion + 1

// moved is the content of movedFile.
type moved struct {
	SchemaVersion int    `json:"schemaVersion"`
	MovedTo       string `json:"movedTo"`
}

// closeLedger leaves that file, before the first entry goes.
func (r *RecordedObjects) closeLedger(l *ledger) error {
	path := filepath.Join(l.dir, movedFile)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	data, err := json.Marshal(moved{SchemaVersion: movedVersion, MovedTo: r.dir})
	if err != nil {
		return err
	}
	return r.disk.WriteFile(path, append(data, '\n'), 0o600)
}

// importEntry puts an entry into those objects that are there already, as they
// are after a crash, or where a version without records was used for a while.
func (r *RecordedObjects) importEntry(ctx context.Context, e entry) error {
	for _, ref := range []volume.ObjectRef{volumeRef(e.Volume), claimRef(e.claim().NamespacedName)} {
		stored, err := r.Live().Get(ctx, ref)
		switch {
		case errors.Is(err, volume.ErrNotFound):
			continue
		case err != nil:
			return err
		}
		if claim, ok := stored.(*v1.PersistentVolumeClaim); ok && claim.UID != e.UID {
			continue // another one of its name
		}
		if _, err := r.Update(ctx, stored); err != nil { // which is all that it needs
			return err
		}
	}
	return r.settle(ctx, &e)
}

// entryFor returns the entry that concerns an object that is about to be written,
// nil if there is none.
func (i *imported) entryFor(object metav1.Object) (*entry, error) {
	if i == nil {
		return nil, nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	switch o := object.(type) {
	case *v1.PersistentVolume:
		if e, ok := i.left[o.Name]; ok {
			return &e, nil
		}
	case *v1.PersistentVolumeClaim:
		return i.ofClaim(nameOf(o), o.UID)
	}
	return nil, nil
}

// ofClaim is called with the lock held. A claim that has no UID yet is the one
// that an earlier version would have taken it for.
func (i *imported) ofClaim(name types.NamespacedName, uid types.UID) (*entry, error) {
	var found []entry
	for _, e := range i.left {
		if e.claim().NamespacedName == name && !e.ClaimDeleted {
			found = append(found, e)
		}
	}
	if uid == "" && len(found) == 1 {
		return &found[0], nil
	}
	wanted := uid
	if wanted == "" {
		wanted = objects.DerivedUID(kindClaim, name.Namespace, name.Name)
	}
	for _, e := range found {
		if e.UID == wanted {
			return &e, nil
		}
	}
	if uid != "" || len(found) == 0 {
		return nil, nil
	}
	slices.SortFunc(found, func(a, b entry) int { return slices.Compare([]byte(a.Volume), []byte(b.Volume)) })
	return nil, fmt.Errorf("%w: several volumes are recorded for claims of the name %q: give the claim the UID of the one that it is, "+
		"%s for volume %q (%s) or %s for volume %q (%s)", volume.ErrBoundElsewhere, name,
		found[0].UID, found[0].Volume, i.path(found[0].Volume), found[1].UID, found[1].Volume, i.path(found[1].Volume))
}

// admit returns the object with what its entry says. It does not change its
// argument.
func (r *RecordedObjects) admit(ctx context.Context, e *entry, object metav1.Object) (metav1.Object, error) {
	if e == nil {
		return object, nil
	}
	switch o := object.(type) {
	case *v1.PersistentVolumeClaim:
		return r.ledger.Load().admitClaim(e, o)
	case *v1.PersistentVolume:
		_, err := r.claimOf(ctx, e)
		if err != nil && !errors.Is(err, volume.ErrNotFound) {
			return nil, err
		}
		return r.ledger.Load().admitVolume(e, o, err != nil && !e.ClaimDeleted)
	}
	return object, nil
}

func (i *imported) admitClaim(e *entry, claim *v1.PersistentVolumeClaim) (metav1.Object, error) {
	if claim.Spec.VolumeName != "" && claim.Spec.VolumeName != e.Volume {
		return nil, i.inConflict(e, claim.Spec.VolumeName)
	}
	claim = claim.DeepCopy()
	claim.UID = e.UID
	if claim.Spec.VolumeName == "" {
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annBoundByController, yes)
	}
	claim.Spec.VolumeName = e.Volume
	return claim, nil
}

func (i *imported) admitVolume(e *entry, pv *v1.PersistentVolume, awaited bool) (metav1.Object, error) {
	pv = pv.DeepCopy()
	switch ref := pv.Spec.ClaimRef; {
	case ref == nil:
		metav1.SetMetaDataAnnotation(&pv.ObjectMeta, annBoundByController, yes)
		pv.Spec.ClaimRef = new(v1.ObjectReference)
	case ref.Namespace != e.Namespace || ref.Name != e.Name || ref.UID != "" && ref.UID != e.UID:
		return nil, &LedgerConflictError{Claim: e.claim(), Volume: e.Volume, Entry: i.path(e.Volume),
			Reason: fmt.Sprintf("the volume's claimRef is that of \"%s/%s\" (UID %q)", ref.Namespace, ref.Name, ref.UID)}
	}
	ref := pv.Spec.ClaimRef
	ref.APIVersion, ref.Kind = v1.SchemeGroupVersion.String(), kindClaim
	ref.Namespace, ref.Name, ref.UID = e.Namespace, e.Name, e.UID
	delete(pv.Annotations, AwaitsClaimAnnotation)
	if awaited {
		metav1.SetMetaDataAnnotation(&pv.ObjectMeta, AwaitsClaimAnnotation, string(e.UID))
	}
	return pv, nil
}

func (i *imported) inConflict(e *entry, volumeName string) error {
	return &LedgerConflictError{Claim: e.claim(), Volume: e.Volume, Entry: i.path(e.Volume), Reason: fmt.Sprintf("the claim names volume %q", volumeName)}
}

// claimOf returns the claim of an entry, this very one.
func (r *RecordedObjects) claimOf(ctx context.Context, e *entry) (*v1.PersistentVolumeClaim, error) {
	ref := claimRef(e.claim().NamespacedName)
	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, r.Live(), ref)
	if err == nil && claim.UID != e.UID {
		return nil, &volume.ObjectNotFoundError{Ref: ref}
	}
	return claim, err
}

// settle drops an entry that claim and volume have in their own records.
func (r *RecordedObjects) settle(ctx context.Context, e *entry) error {
	pv, err := objects.Get[*v1.PersistentVolume](ctx, r.Live(), volumeRef(e.Volume))
	if err != nil {
		return ignoreMissing(err)
	}
	if !e.ClaimDeleted {
		claim, err := r.claimOf(ctx, e)
		if err != nil {
			return ignoreMissing(err)
		}
		if claim.Spec.VolumeName != e.Volume {
			return nil
		}
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != e.UID {
		return nil
	}
	if awaitsClaim(pv) {
		_, err := r.Update(ctx, pv) // which finds the claim, and comes here again
		return err
	}
	return r.drop(e)
}

// trySettle is settle after a write has been done. If it fails, it is tried
// again at a later write of either object, or at the next start.
func (r *RecordedObjects) trySettle(ctx context.Context, e *entry) {
	if e != nil {
		_ = r.settle(context.WithoutCancel(ctx), e)
	}
}

// isReleasing reports whether somebody takes the claimRef of a volume away, which
// frees it from its entry, too.
func isReleasing(stored, next metav1.Object) bool {
	was, ok := stored.(*v1.PersistentVolume)
	if !ok || was.Spec.ClaimRef == nil || was.Spec.ClaimRef.UID == "" {
		return false
	}
	pv, ok := next.(*v1.PersistentVolume)
	return ok && pv.Spec.ClaimRef == nil
}

// drop removes an entry.
func (r *RecordedObjects) drop(e *entry) error {
	i := r.ledger.Load()
	if err := r.disk.Remove(i.path(e.Volume)); err != nil {
		return fmt.Errorf("remove the entry of volume %q from the ledger of bindings: %w", e.Volume, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.left, e.Volume)
	return nil
}

// buried notes, before the record of a claim goes, that it was deleted: another
// one of its name does not get its volume.
func (r *RecordedObjects) buried(claim metav1.Object) error {
	i := r.ledger.Load()
	if _, ok := claim.(*v1.PersistentVolumeClaim); !ok {
		return nil
	}
	e, err := i.entryFor(claim)
	if e == nil || err != nil {
		return err
	}
	next := *e
	next.ClaimDeleted = true
	data, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := r.disk.WriteFile(i.path(e.Volume), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("note in the ledger of bindings that %s was deleted: %w", e.claim(), err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.left[e.Volume] = next
	return nil
}

// LedgerConflictError says that a claim or volume is not as an entry of the
// ledger of an earlier version says. It matches [volume.ErrBoundElsewhere].
type LedgerConflictError struct {
	Claim  ClaimID
	Volume string
	// Entry is the ledger's file.
	Entry string
	// Reason says what was found.
	Reason string
}

func (e *LedgerConflictError) Error() string {
	return fmt.Sprintf("an earlier version has bound volume %q to %s, and %s: let it have that volume, or, if nobody needs what the claim has in it, remove %s",
		e.Volume, e.Claim, e.Reason, e.Entry)
}

// Unwrap returns [volume.ErrBoundElsewhere].
func (e *LedgerConflictError) Unwrap() error { return volume.ErrBoundElsewhere }
