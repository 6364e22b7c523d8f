package persistentvolume

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/util/flight"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Objects is what a binder needs of an object store.
type Objects interface {
	objects.Source
	objects.Lister
	objects.Writer
}

// Binder binds claims to the volumes that fit ([Index.Match]). It is safe for
// concurrent use, and must not be copied after first use.
type Binder struct {
	Objects Objects
	// LedgerDir is the directory of the bindings, below the root of the node;
	// it is made where it is missing (0700). All who bind volumes for one root
	// use the same: it is locked while somebody does, across processes.
	LedgerDir string
	// NodeName is the node that the pods are on. Volumes that cannot be
	// reached from it are not considered, whether the class binds at once or
	// waits for its first consumer.
	NodeName string

	locking flight.Group[string] // waits for the ledger's lock
}

// maxAttempts is how often a binding is tried anew when another writer was
// faster.
const maxAttempts = 5

// BindPods binds all claims of the pods that are not bound yet, those that
// name a volume or have one recorded first, the rest in order of the pods. It
// is idempotent: after a crash at any point a second call completes what the
// first began, with the same volumes.
//
// Each binding is on disk before a store shows it. The error is a *[PodsError]
// with every claim that could not be bound; the others are bound nevertheless.
// A claim that does not exist matches [volume.ErrNotFound]. Any other error
// says that nothing was begun: the ledger could not be opened, or what concerns
// all claims not be looked up.
func (b *Binder) BindPods(ctx context.Context, pods []*v1.Pod) error {
	refs := claimsOf(pods)
	if len(refs) == 0 {
		return nil
	}
	l, err := openLedger(ctx, &b.locking, b.LedgerDir)
	if err != nil {
		return err
	}
	defer l.close()
	s := &session{Binder: b, ledger: l}
	if err := s.look(ctx); err != nil {
		return err
	}
	var unbound []*UnboundError
	bind := func(claim *v1.PersistentVolumeClaim) {
		if err := s.bind(ctx, claim); err != nil {
			unbound = append(unbound, err)
		}
	}
	var open []*v1.PersistentVolumeClaim
	for _, ref := range refs {
		claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, b.Objects, ref)
		if err != nil {
			unbound = append(unbound, &UnboundError{Claim: ref.NamespacedName, Err: err})
			continue
		}
		if _, recorded := l.of(claim); recorded || claim.Spec.VolumeName != "" {
			bind(claim)
		} else {
			open = append(open, claim)
		}
	}
	for _, claim := range open {
		bind(claim)
	}
	if len(unbound) > 0 {
		return &PodsError{Unbound: unbound}
	}
	return nil
}

// claimsOf returns the claims that the pods use, each once.
func claimsOf(pods []*v1.Pod) (refs []volume.ObjectRef) {
	seen := make(map[volume.ObjectRef]bool)
	for _, pod := range pods {
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim == nil {
				continue
			}
			ref := volume.NewObjectRef("PersistentVolumeClaim", pod.Namespace, v.PersistentVolumeClaim.ClaimName)
			if !seen[ref] {
				seen[ref] = true
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

// session is one call of BindPods, while the ledger is locked.
type session struct {
	*Binder
	ledger *ledger
	index  *Index
	// circumstances are those of every claim.
	circumstances Wanted
}

// look looks everything up that concerns all claims. What others change later
// shows in conflicts.
func (s *session) look(ctx context.Context) error {
	s.circumstances.NodeName = s.NodeName
	classes, err := objects.List[*storagev1.StorageClass](ctx, s.Objects, "StorageClass", "")
	if err != nil {
		return fmt.Errorf("bind claims: %w", err)
	}
	s.circumstances.DefaultClass = DefaultClass(classes)
	node, err := objects.Get[*v1.Node](ctx, s.Objects, volume.NewObjectRef("Node", "", s.NodeName))
	switch {
	case err == nil:
		s.circumstances.NodeLabels = node.Labels
	case !errors.Is(err, volume.ErrNotFound):
		return fmt.Errorf("bind claims: %w", err)
	}
	if err := s.fill(ctx); err != nil {
		return fmt.Errorf("bind claims: %w", err)
	}
	return nil
}

// fill makes the index of all volumes and what they are kept for.
func (s *session) fill(ctx context.Context) error {
	volumes, err := objects.List[*v1.PersistentVolume](ctx, s.Objects, "PersistentVolume", "")
	if err != nil {
		return err
	}
	claims, err := objects.List[*v1.PersistentVolumeClaim](ctx, s.Objects, "PersistentVolumeClaim", "")
	if err != nil {
		return err
	}
	s.index = NewIndex()
	for _, claim := range claims {
		s.index.PutClaim(claim)
	}
	for _, e := range s.ledger.byVolume {
		s.index.Record(e.Volume, e.claim())
	}
	for _, pv := range volumes {
		s.index.Put(pv)
	}
	return nil
}

// bind binds one claim, trying anew when the volume or the claim changed.
func (s *session) bind(ctx context.Context, claim *v1.PersistentVolumeClaim) *UnboundError {
	var err error
	for range maxAttempts {
		if err = s.tryBind(ctx, claim); !errors.Is(err, objects.ErrConflict) {
			break
		}
		fresh, getErr := objects.Get[*v1.PersistentVolumeClaim](ctx, s.Objects, volume.NewObjectRef("PersistentVolumeClaim", claim.Namespace, claim.Name))
		if getErr != nil {
			err = getErr
			break
		}
		claim = fresh
	}
	if err == nil {
		return nil
	}
	if told, ok := errors.AsType[*UnboundError](err); ok {
		if e, recorded := s.ledger.of(claim); recorded && e.Volume == told.Volume {
			told.Record = s.ledger.path(e.Volume)
		}
		return told
	}
	return &UnboundError{Claim: nameOf(claim), Err: err}
}

func (s *session) tryBind(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if claim.UID == "" {
		return volume.Invalid("metadata.uid", "a claim without UID cannot be told from a later one of its name")
	}
	named := claim.Spec.VolumeName
	if pv, ok := s.index.Volume(named); ok && volume.CheckBinding(claim, pv) == nil {
		return s.record(named, claim) // bound already, be it by somebody else
	}
	mine, before := s.ledger.of(claim)
	if before && named != "" {
		if err := s.ledger.check(mine, named); err != nil {
			return err
		}
	}
	w := s.circumstances
	w.Claim = claim
	reserved, err := s.index.Reserve(w)
	if err != nil {
		return explain(err)
	}
	defer reserved.Release()
	pv := reserved.Volume()
	if err := s.record(pv.Name, claim); err != nil {
		return err
	}
	taken, err := s.take(ctx, pv, claim)
	if err == nil {
		reserved.Commit(taken)
		err = s.complete(ctx, taken, claim)
	} else if !before && errors.Is(err, objects.ErrConflict) {
		// Somebody else changed the volume before it was used.
		err = errors.Join(err, s.withdraw(pv.Name))
	}
	if errors.Is(err, objects.ErrConflict) {
		err = errors.Join(err, s.refresh(ctx, pv.Name))
	}
	return err
}

func (s *session) record(volumeName string, claim *v1.PersistentVolumeClaim) error {
	if err := s.ledger.record(volumeName, claim); err != nil {
		return err
	}
	s.index.Record(volumeName, IDOf(claim))
	return nil
}

func (s *session) withdraw(volumeName string) error {
	if err := s.ledger.withdraw(volumeName); err != nil {
		return err
	}
	s.index.Forget(volumeName)
	return nil
}

// refresh looks a volume up anew that somebody else has changed.
func (s *session) refresh(ctx context.Context, volumeName string) error {
	pv, err := objects.Get[*v1.PersistentVolume](ctx, s.Objects, volume.NewObjectRef("PersistentVolume", "", volumeName))
	switch {
	case err == nil:
		s.index.Put(pv)
	case errors.Is(err, volume.ErrNotFound):
		s.index.Delete(volumeName)
	default:
		return err
	}
	return nil
}

// explain sharpens the sentinel of a claim that can have one volume only.
func explain(err error) error {
	e, ok := errors.AsType[*UnboundError](err)
	if !ok || e.Volume == "" {
		return err
	}
	switch {
	case len(e.Rejected) == 0:
		e.Err = volume.ErrClaimLost
	case e.Rejected[0].Reason == BoundElsewhere:
		e.Err = volume.ErrBoundElsewhere
	}
	return e
}
