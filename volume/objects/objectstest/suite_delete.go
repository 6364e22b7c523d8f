package objectstest

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

const finalizer = "example.com/keep"

func deletePromises() []promise {
	return []promise{
		{contract: DeleteChecksUID, check: func(p *probe) error {
			return checkDelete(p, func(*v1.ConfigMap) objects.Preconditions { return objects.Preconditions{UID: "another"} })
		}},
		{contract: DeleteChecksVersion, check: func(p *probe) error {
			return checkDelete(p, func(old *v1.ConfigMap) objects.Preconditions {
				return objects.Preconditions{UID: old.UID, ResourceVersion: old.ResourceVersion}
			})
		}},
		{contract: FinalizersDelay, check: checkFinalizersDelay},
		{contract: FinalizersCannotGrow, check: checkFinalizersCannotGrow},
		{contract: DeletionKeepsTime, check: checkDeletionTime},
		{contract: RecreatedIsAnother, check: checkRecreated},
	}
}

// checkDelete deletes a config map twice: with preconditions from an old version,
// which must fail, and with the right ones.
func checkDelete(p *probe, wrong func(old *v1.ConfigMap) objects.Preconditions) error {
	old, err := create(p, p.configMap("kept"))
	if err != nil {
		return err
	}
	if err := p.annotate(refOf(old), "example.com/changed"); err != nil {
		return err
	}
	if err := want("the deletion", p.Writer.Delete(p.ctx, refOf(old), wrong(old)), objects.ErrConflict); err != nil {
		return err
	}
	stored, err := p.live().Get(p.ctx, refOf(old))
	if err != nil {
		return fmt.Errorf("after the refused deletion: %w", err)
	}
	right := objects.Preconditions{UID: stored.GetUID(), ResourceVersion: stored.GetResourceVersion()}
	if err := p.Writer.Delete(p.ctx, refOf(old), right); err != nil {
		return err
	}
	_, err = p.live().Get(p.ctx, refOf(old))
	return want("after the deletion", err, volume.ErrNotFound)
}

// deleting returns a config map that waits for its finalizer.
func (p *probe) deleting() (*v1.ConfigMap, error) {
	finalized := p.configMap("finalized")
	finalized.Finalizers = []string{finalizer}
	created, err := create(p, finalized)
	if err != nil {
		return nil, err
	}
	if err := p.Writer.Delete(p.ctx, refOf(created), objects.Preconditions{}); err != nil {
		return nil, err
	}
	stored, err := objects.Get[*v1.ConfigMap](p.ctx, p.live(), refOf(created))
	switch {
	case err != nil:
		return nil, fmt.Errorf("after the deletion: %w", err)
	case stored.DeletionTimestamp == nil:
		return nil, errors.New("after the deletion it has no deletion timestamp")
	}
	return stored.DeepCopy(), nil
}

func checkFinalizersDelay(p *probe) error {
	deleting, err := p.deleting()
	if err != nil {
		return err
	}
	deleting.Finalizers = nil
	if _, err := p.Writer.Update(p.ctx, deleting); err != nil {
		return err
	}
	_, err = p.live().Get(p.ctx, refOf(deleting))
	return want("without finalizers", err, volume.ErrNotFound)
}

func checkFinalizersCannotGrow(p *probe) error {
	deleting, err := p.deleting()
	if err != nil {
		return err
	}
	deleting.Finalizers = append(deleting.Finalizers, "example.com/late")
	_, err = p.Writer.Update(p.ctx, deleting)
	return wantType[*volume.InvalidSpecError]("one finalizer more", err)
}

func checkDeletionTime(p *probe) error {
	deleting, err := p.deleting()
	if err != nil {
		return err
	}
	if err := p.Writer.Delete(p.ctx, refOf(deleting), objects.Preconditions{UID: deleting.UID}); err != nil {
		return err
	}
	again, err := p.live().Get(p.ctx, refOf(deleting))
	if err == nil && !again.GetDeletionTimestamp().Equal(deleting.DeletionTimestamp) {
		return fmt.Errorf("deleted at %s, then at %s", deleting.DeletionTimestamp, again.GetDeletionTimestamp())
	}
	return err
}

func checkRecreated(p *probe) error {
	first, err := create(p, p.configMap("again"))
	if err != nil {
		return err
	}
	if err := p.Writer.Delete(p.ctx, refOf(first), objects.Preconditions{UID: first.UID}); err != nil {
		return err
	}
	second, err := create(p, p.configMap("again"))
	if err == nil && second.UID == first.UID {
		return fmt.Errorf("both have UID %s", first.UID)
	}
	return err
}
