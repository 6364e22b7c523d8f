package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

// manifestObjects are the objects of manifests, applied to the claims. It reports
// once which objects differ from their manifests.
type manifestObjects struct {
	claims     *claims
	say        func(string)
	deleteHint func(volume.ObjectRef) string

	applied map[volume.ObjectRef]metav1.Object // as the manifests had them last
	faults  map[volume.ObjectRef]string        // said about objects that are not as they are wanted
	kept    map[volume.ObjectRef]bool          // said to be in no manifest
}

func newManifestObjects(claims *claims, say func(string), deleteHint func(volume.ObjectRef) string) *manifestObjects {
	return &manifestObjects{claims: claims, say: say, deleteHint: deleteHint,
		applied: make(map[volume.ObjectRef]metav1.Object), faults: make(map[volume.ObjectRef]string)}
}

// forget makes the next apply apply an object again.
func (m *manifestObjects) forget(ref volume.ObjectRef) { delete(m.applied, ref) }

// apply applies the objects whose manifests have changed since the last time, and
// retries the failed ones. A refused object must not stop the others. Its refusal
// is reported once. apply reports whether a retry may help.
func (m *manifestObjects) apply(ctx context.Context, want *manifestdir.Contents) (again bool, err error) {
	var changed []metav1.Object
	applied := make(map[volume.ObjectRef]metav1.Object, len(want.Objects)+len(want.Pods))
	add := func(ref volume.ObjectRef, object metav1.Object) {
		applied[ref] = object
		if m.applied[ref] != object {
			changed = append(changed, object)
		}
	}
	for ref, object := range want.Objects {
		add(ref, object)
	}
	for ref, pod := range want.Pods {
		add(ref, pod)
	}
	failed := m.claims.Apply(ctx, changed...)
	if failed != nil && ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	faults := make(map[volume.ObjectRef]string)
	for _, e := range objectErrors(failed) {
		delete(applied, e.Ref)
		faults[e.Ref] = e.Error()
		again = again || !isForPeople(e)
	}
	m.applied = applied
	m.complain(faults)
	return again, nil
}

// objectErrors are the errors of single objects in an error of Apply or Prune.
func objectErrors(err error) (all []*embedded.ObjectError) {
	joined, several := err.(interface{ Unwrap() []error })
	if !several {
		if e, ok := errors.AsType[*embedded.ObjectError](err); ok {
			all = append(all, e)
		} else if err != nil {
			all = append(all, &embedded.ObjectError{Err: err})
		}
		return all
	}
	for _, e := range joined.Unwrap() {
		all = append(all, objectErrors(e)...)
	}
	return all
}

// isForPeople reports whether a retry is useless: only a change of a manifest, or
// the end of the object's deletion, helps.
func isForPeople(err error) bool {
	_, invalid := errors.AsType[*volume.InvalidSpecError](err)
	return invalid || errors.Is(err, embedded.ErrImmutable) || errors.Is(err, embedded.ErrBeingDeleted)
}

// complain reports new faults of objects that differ from their manifests.
func (m *manifestObjects) complain(faults map[volume.ObjectRef]string) {
	lines := make([]string, 0, len(faults))
	for ref, text := range faults {
		if m.faults[ref] != text {
			lines = append(lines, text)
		}
	}
	m.faults = faults
	slices.Sort(lines)
	for _, line := range lines {
		m.say(line)
	}
}

// prune deletes the objects that were in manifests and no longer are. It must be
// called only when all manifests are known.
//
//   - Claims and volumes are deleted only if they were taken away while this run
//     watched. The others are named.
//   - An object that a pod has mounted stays if the pod's wanted version is not
//     mounted yet. Then prune must be called again.
func (m *manifestObjects) prune(ctx context.Context, want *manifestdir.Contents, taken, held map[volume.ObjectRef]bool) (kept, refused bool, err error) {
	for ref := range held {
		kept = kept || taken[ref]
		delete(taken, ref)
	}
	declared := embedded.Declared{NothingIsMeant: true, Gone: taken}
	for _, object := range want.Objects {
		declared.Objects = append(declared.Objects, object)
	}
	for _, pod := range want.Pods {
		declared.Objects = append(declared.Objects, pod)
	}
	for set := range want.StatefulSets {
		declared.StatefulSets = append(declared.StatefulSets, set)
	}
	failed := m.claims.Prune(ctx, declared)
	left, err := m.claims.cluster.Undeclared(ctx, declared)
	if ctx.Err() != nil {
		return false, false, context.Cause(ctx)
	}
	for _, e := range objectErrors(errors.Join(failed, err)) {
		refused = refused || taken[e.Ref]
		if text := e.Error(); m.faults[e.Ref] != text {
			m.faults[e.Ref] = text
			m.say(fmt.Sprintf("not deleted: %v", e))
		}
	}
	m.nameKept(slices.DeleteFunc(left, func(ref volume.ObjectRef) bool { return taken[ref] || held[ref] }))
	return kept, refused, nil
}

// nameKept reports once the objects that are in no manifest and stay.
func (m *manifestObjects) nameKept(refs []volume.ObjectRef) {
	kept := make(map[volume.ObjectRef]bool, len(refs))
	for _, ref := range refs {
		kept[ref] = true
		if m.kept[ref] {
			continue
		}
		m.say(fmt.Sprintf("%s is in no manifest, and kept, since this agent did not see its removal: %s deletes it", ref, m.deleteHint(ref)))
	}
	m.kept = kept
}
