package objectstest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

func createPromises() []promise {
	return []promise{
		{contract: CreateGivesIdentity, check: checkIdentity},
		{contract: CreateCopies, check: checkCopies},
		{contract: CreateRefusesExisting, check: checkExisting},
		{contract: CreateRefusesVersion, check: checkVersionOfNew},
		{contract: CreateRefusesBadScope, check: checkScope},
		{contract: VersionsGrow, check: checkVersionsGrow},
	}
}

func updatePromises() []promise {
	another := func(o metav1.Object) { o.SetUID("00000000-0000-4000-8000-000000000000"); o.SetResourceVersion("") }
	old := func(metav1.Object) {} // the object passed has been changed since
	update := func(p *probe) writeFunc { return p.Writer.Update }
	status := func(p *probe) writeFunc { return p.Writer.UpdateStatus }
	return []promise{
		{contract: WriteRefusesMissing, check: checkWritesOfMissing},
		{contract: UpdateChecksUID, check: func(p *probe) error { return checkConflict(p, update(p), another) }},
		{contract: UpdateChecksVersion, check: func(p *probe) error { return checkConflict(p, update(p), old) }},
		{contract: UpdateWithoutVersion, check: checkLastWriter},
		{contract: UpdateLeavesStatus, check: checkUpdateLeavesStatus},
		{contract: UnchangedUpdate, check: checkUnchanged},
		{contract: StatusLeavesRest, check: checkStatusLeavesRest},
		{contract: StatusChecksUID, check: func(p *probe) error { return checkConflict(p, status(p), another) }},
		{contract: StatusChecksVersion, check: func(p *probe) error { return checkConflict(p, status(p), old) }},
		{contract: StatusRefusesKind, check: checkStatusOfKind},
		{contract: ConcurrentUpdates, check: checkConcurrent},
	}
}

type writeFunc func(context.Context, metav1.Object) (metav1.Object, error)

func checkIdentity(p *probe) error {
	created, err := create(p, p.configMap("new"))
	if err != nil {
		return err
	}
	if created.UID == "" || created.ResourceVersion == "" || created.CreationTimestamp.IsZero() {
		return fmt.Errorf("created without UID, version or time: %+v", created.ObjectMeta)
	}
	return nil
}

func checkCopies(p *probe) error {
	mine := p.configMap("new")
	before := mine.DeepCopy()
	created, err := create(p, mine)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(mine, before) {
		return fmt.Errorf("the argument was changed to %+v", mine)
	}
	mine.Data["key"], created.Data["key"] = "changed", "changed"
	stored, err := objects.Get[*v1.ConfigMap](p.ctx, p.live(), refOf(created))
	if err == nil && stored.Data["key"] != "value" {
		return errors.New("what is stored shares memory with the argument or the result")
	}
	return err
}

func checkExisting(p *probe) error {
	if _, err := create(p, p.configMap("new")); err != nil {
		return err
	}
	_, err := p.Writer.Create(p.ctx, p.configMap("new"))
	return want("a second creation", err, objects.ErrExists)
}

func checkVersionOfNew(p *probe) error {
	versioned := p.configMap("new")
	versioned.ResourceVersion = "1"
	_, err := create(p, versioned)
	return wantType[*volume.InvalidSpecError]("a creation with a version", err)
}

func checkScope(p *probe) error {
	homeless, nameless, local := p.configMap("x"), p.configMap("x"), p.node("x")
	homeless.Namespace, nameless.Name, local.Namespace = "", "", p.Namespaces[0]
	var errs []error
	for what, object := range map[string]metav1.Object{"without namespace": homeless, "without name": nameless, "with a namespace too many": local} {
		_, err := p.Writer.Create(p.ctx, object)
		errs = append(errs, wantType[*volume.InvalidSpecError](what, err))
	}
	return errors.Join(errs...)
}

// checkVersionsGrow compares versions as numbers, as Kubernetes lets clients do
// for objects of one kind since 1.35 (KEP-5504).
func checkVersionsGrow(p *probe) error {
	last := uint64(0)
	grows := func(object metav1.Object) error {
		version, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
		if err == nil && version <= last {
			err = fmt.Errorf("version %d follows %d", version, last)
		}
		last = version
		return err
	}
	first, err := create(p, p.configMap("first"))
	if err != nil {
		return err
	}
	second, err := create(p, p.configMap("second"))
	if err != nil {
		return err
	}
	errs := []error{grows(first), grows(second)}
	first.Data["key"] = "changed"
	updated, err := p.Writer.Update(p.ctx, first)
	if err != nil {
		return err
	}
	return errors.Join(append(errs, grows(updated))...)
}

func checkWritesOfMissing(p *probe) error {
	_, update := p.Writer.Update(p.ctx, p.configMap("missing"))
	_, status := p.Writer.UpdateStatus(p.ctx, p.node("missing"))
	return errors.Join(want("update", update, volume.ErrNotFound), want("update of the status", status, volume.ErrNotFound),
		want("delete", p.Writer.Delete(p.ctx, p.configMapRef("missing"), objects.Preconditions{}), volume.ErrNotFound))
}

// checkConflict changes a node without the writer's knowledge. It then has the
// writer write its copy, changed by spoil.
func checkConflict(p *probe, write writeFunc, spoil func(metav1.Object)) error {
	mine, err := create(p, p.node("shared"))
	if err != nil {
		return err
	}
	theirs := mine.DeepCopy()
	theirs.Annotations = map[string]string{"example.com/theirs": ""}
	after, err := p.Writer.Update(p.ctx, theirs)
	if err != nil {
		return err
	}
	mine.Annotations = map[string]string{"example.com/mine": ""}
	mine.Status.VolumesInUse = []v1.UniqueVolumeName{"mine"}
	spoil(mine)
	_, err = write(p.ctx, mine)
	stored, getErr := p.live().Get(p.ctx, refOf(mine))
	if getErr == nil && stored.GetResourceVersion() != after.GetResourceVersion() {
		getErr = errors.New("the refused write changed the object")
	}
	return errors.Join(want("the write", err, objects.ErrConflict), getErr)
}

func checkLastWriter(p *probe) error {
	mine, err := create(p, p.configMap("shared"))
	if err != nil {
		return err
	}
	theirs := mine.DeepCopy()
	theirs.Data["key"] = "theirs"
	if _, err := p.Writer.Update(p.ctx, theirs); err != nil {
		return err
	}
	mine.ResourceVersion, mine.UID, mine.Data["key"] = "", "", "mine"
	if _, err := p.Writer.Update(p.ctx, mine); err != nil {
		return err
	}
	stored, err := objects.Get[*v1.ConfigMap](p.ctx, p.live(), refOf(mine))
	if err == nil && stored.Data["key"] != "mine" {
		return fmt.Errorf("stored is %q", stored.Data["key"])
	}
	return err
}

func checkUpdateLeavesStatus(p *probe) error {
	node, err := create(p, p.node("node"))
	if err != nil {
		return err
	}
	node.Annotations = map[string]string{"example.com/changed": ""}
	node.Status.VolumesInUse = []v1.UniqueVolumeName{"not so"}
	if _, err := p.Writer.Update(p.ctx, node); err != nil {
		return err
	}
	stored, err := objects.Get[*v1.Node](p.ctx, p.live(), refOf(node))
	if err == nil && (len(stored.Status.VolumesInUse) > 0 || len(stored.Annotations) == 0) {
		return fmt.Errorf("stored are annotations %v and volumes in use %v", stored.Annotations, stored.Status.VolumesInUse)
	}
	return err
}

func checkStatusLeavesRest(p *probe) error {
	node, err := create(p, p.node("node"))
	if err != nil {
		return err
	}
	node.Spec.PodCIDR = "192.0.2.0/24"
	node.Status.VolumesInUse = []v1.UniqueVolumeName{"so"}
	if _, err := p.Writer.UpdateStatus(p.ctx, node); err != nil {
		return err
	}
	stored, err := objects.Get[*v1.Node](p.ctx, p.live(), refOf(node))
	if err == nil && (len(stored.Status.VolumesInUse) != 1 || stored.Spec.PodCIDR != "") {
		return fmt.Errorf("stored are range %q and volumes in use %v", stored.Spec.PodCIDR, stored.Status.VolumesInUse)
	}
	return err
}

func checkStatusOfKind(p *probe) error {
	created, err := create(p, p.configMap("plain"))
	if err != nil {
		return err
	}
	_, err = p.Writer.UpdateStatus(p.ctx, created)
	return wantType[*volume.InvalidSpecError]("a config map's status", err)
}

func checkUnchanged(p *probe) error {
	created, err := create(p, p.configMap("same"))
	if err != nil {
		return err
	}
	updated, err := p.Writer.Update(p.ctx, created)
	if err == nil && updated.GetResourceVersion() != created.ResourceVersion {
		return fmt.Errorf("version %s became %s", created.ResourceVersion, updated.GetResourceVersion())
	}
	return err
}

func checkConcurrent(p *probe) error {
	created, err := create(p, p.configMap("shared"))
	if err != nil {
		return err
	}
	const writers, rounds = 4, 5
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := 0; n < rounds && errs[w] == nil; n++ {
				errs[w] = p.annotate(refOf(created), fmt.Sprintf("example.com/w%d-%d", w, n))
			}
		})
	}
	wg.Wait()
	stored, err := p.live().Get(p.ctx, refOf(created))
	if err == nil && len(stored.GetAnnotations()) != writers*rounds {
		err = fmt.Errorf("%d of %d updates survived", len(stored.GetAnnotations()), writers*rounds)
	}
	return errors.Join(append(errs, err)...)
}

// annotate adds an annotation to a config map. It retries after conflicts.
func (p *probe) annotate(ref volume.ObjectRef, key string) error {
	for {
		stored, err := objects.Get[*v1.ConfigMap](p.ctx, p.live(), ref)
		if err != nil {
			return err
		}
		next := stored.DeepCopy()
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, key, "")
		if _, err = p.Writer.Update(p.ctx, next); !errors.Is(err, objects.ErrConflict) {
			return err
		}
	}
}
