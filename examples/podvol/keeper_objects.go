package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

// applyObjects applies what has changed in the manifests since the last time, and
// what could not be applied then. One object that is refused is no reason to end
// for all others; it is said, once. It reports whether another try may help.
func (k *keeper) applyObjects(ctx context.Context, want *contents) (again bool, err error) {
	var changed []metav1.Object
	applied := make(map[volume.ObjectRef]metav1.Object, len(want.objects)+len(want.pods))
	add := func(ref volume.ObjectRef, object metav1.Object) {
		applied[ref] = object
		if k.applied[ref] != object {
			changed = append(changed, object)
		}
	}
	for ref, object := range want.objects {
		add(ref, object)
	}
	for ref, pod := range want.pods {
		add(ref, pod)
	}
	failed := k.storage.Apply(ctx, changed...)
	if failed != nil && ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	faults := make(map[volume.ObjectRef]string)
	for _, e := range objectErrors(failed) {
		delete(applied, e.Ref)
		faults[e.Ref] = e.Error()
		again = again || !isForPeople(e)
	}
	k.applied = applied
	k.complain(faults)
	return again, nil
}

// objectErrors are the errors of single objects in what Apply and Prune return.
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

// isForPeople reports whether only a change to a manifest helps, or what happens
// to the object anyway.
func isForPeople(err error) bool {
	_, immutable := errors.AsType[*embedded.ImmutableFieldError](err)
	_, invalid := errors.AsType[*volume.InvalidSpecError](err)
	return immutable || invalid || errors.Is(err, embedded.ErrBeingDeleted)
}

// complain says what is new about objects that are not as they are wanted.
func (k *keeper) complain(faults map[volume.ObjectRef]string) {
	lines := make([]string, 0, len(faults))
	for ref, text := range faults {
		if k.faults[ref] != text {
			lines = append(lines, text)
		}
	}
	k.faults = faults
	slices.Sort(lines)
	for _, line := range lines {
		k.say(line)
	}
}

// complete says that all pods are known: what is left of others may be torn down,
// and then their claims go.
func (k *keeper) complete(ctx context.Context) {
	// They are looked up first: one that goes at once is in nobody's rows then.
	unknown := make(map[types.UID]bool)
	for _, v := range k.node.Explain() {
		if k.pods[v.PodUID] == nil {
			unknown[v.PodUID] = true
		}
	}
	k.node.PodsComplete(k.undeclared()...)
	for uid := range unknown {
		k.follow(ctx, uid)
	}
	k.storage.PodsComplete()
}

// prune deletes the objects that manifests have had and have no more: of claims
// and volumes those that were taken away while this run looked, and names the
// others. What a pod has mounted that is not mounted yet as it is wanted now stays,
// too: then it is to be called again. It must be called only when all manifests
// are known.
func (k *keeper) prune(ctx context.Context, want *contents, taken map[volume.ObjectRef]bool) (kept, refused bool, err error) {
	held := k.held()
	for ref := range held {
		kept = kept || taken[ref]
		delete(taken, ref)
	}
	declared := embedded.Declared{NothingIsMeant: true, Gone: taken}
	for _, object := range want.objects {
		declared.Objects = append(declared.Objects, object)
	}
	for _, pod := range want.pods {
		declared.Objects = append(declared.Objects, pod)
	}
	for set := range want.sets {
		declared.StatefulSets = append(declared.StatefulSets, set)
	}
	failed := k.storage.Prune(ctx, declared)
	left, err := k.storage.Undeclared(ctx, declared)
	if ctx.Err() != nil {
		return false, false, context.Cause(ctx)
	}
	for _, e := range objectErrors(errors.Join(failed, err)) {
		refused = refused || taken[e.Ref]
		if text := e.Error(); k.faults[e.Ref] != text {
			k.faults[e.Ref] = text
			k.say(fmt.Sprintf("not deleted: %v", e))
		}
	}
	k.nameKept(slices.DeleteFunc(left, func(ref volume.ObjectRef) bool { return taken[ref] || held[ref] }))
	return kept, refused, nil
}

// held are the claims and volumes that pods have mounted that the node does not
// know as they are wanted now.
func (k *keeper) held() map[volume.ObjectRef]bool {
	held := make(map[volume.ObjectRef]bool)
	uids := k.undeclared()
	if len(uids) == 0 {
		return held
	}
	for _, v := range k.node.Explain() {
		if slices.Contains(uids, v.PodUID) {
			held[volume.NewObjectRef("PersistentVolumeClaim", v.Claim.Namespace, v.Claim.Name)] = true
			held[volume.NewObjectRef("PersistentVolume", "", volumeName(v))] = true
		}
	}
	return held
}

// nameKept says, once, what is in no manifest and stays.
func (k *keeper) nameKept(refs []volume.ObjectRef) {
	kept := make(map[volume.ObjectRef]bool, len(refs))
	for _, ref := range refs {
		kept[ref] = true
		if k.kept[ref] {
			continue
		}
		command := "podvol pv delete " + ref.Name
		if ref.Kind == "PersistentVolumeClaim" {
			command = "podvol pvc delete " + ref.Namespace + "/" + ref.Name
		}
		k.say(fmt.Sprintf("%s is in no manifest, and kept, since nobody has seen it go from this directory: %s deletes it", ref, command))
	}
	k.kept = kept
}
