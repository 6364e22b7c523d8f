package clustertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// others are objects of kinds that an embedded store does not keep.
type others struct {
	mu      sync.Mutex
	version uint64
	stored  map[volume.ObjectRef]metav1.Object
	events  []apiEvent
	news    chan struct{} // closed with the next event
}

func newOthers() others {
	return others{stored: make(map[volume.ObjectRef]metav1.Object), news: make(chan struct{})}
}

// list returns the objects of a kind in a namespace; an empty one means all.
func (o *others) list(a Request) (items []metav1.Object, version uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	items = []metav1.Object{}
	for ref, object := range o.stored {
		if selects(a, ref) {
			items = append(items, object)
		}
	}
	return items, o.version
}

// since returns the events after a version, and a channel that is closed at the
// next event.
func (o *others) since(a Request, after uint64) (events []apiEvent, news chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.events {
		if e.version > after && selects(a, volume.NewObjectRef(e.kind, e.Object.GetNamespace(), e.Object.GetName())) {
			events = append(events, e)
		}
	}
	return events, o.news
}

func selects(a Request, ref volume.ObjectRef) bool {
	return a.Kind.Kind == ref.Kind && (a.Namespace == "" || a.Namespace == ref.Namespace) && (a.Name == "" || a.Name == ref.Name)
}

// happened notifies the watches. o is locked.
func (o *others) happened(what string, kind objects.Kind, object metav1.Object) {
	o.events = append(o.events, apiEvent{version: o.version, kind: kind.Kind, Type: what, Object: object})
	close(o.news)
	o.news = make(chan struct{})
}

func otherKinds() []objects.Kind {
	return []objects.Kind{
		{GroupVersionKind: coordinationv1.SchemeGroupVersion.WithKind("Lease"), Namespaced: true, New: func() metav1.Object { return new(coordinationv1.Lease) }},
		{GroupVersionKind: storagev1.SchemeGroupVersion.WithKind("CSINode"), New: func() metav1.Object { return new(storagev1.CSINode) }},
		{GroupVersionKind: v1.SchemeGroupVersion.WithKind("Event"), Namespaced: true, New: func() metav1.Object { return new(v1.Event) }},
	}
}

func served() []objects.Kind { return append(objects.Kinds(), otherKinds()...) }

func isOther(kind objects.Kind) bool {
	return slices.ContainsFunc(otherKinds(), func(k objects.Kind) bool { return k.Kind == kind.Kind })
}

// checkUpdate is the validation of a CSINode: of a driver's entry only the limit may change.
func checkUpdate(old, object metav1.Object) error {
	before, ok := old.(*storagev1.CSINode)
	if !ok {
		return nil
	}
	for _, was := range before.Spec.Drivers {
		for _, is := range object.(*storagev1.CSINode).Spec.Drivers {
			if is.Name == was.Name && (is.NodeID != was.NodeID || !slices.Equal(is.TopologyKeys, was.TopologyKeys)) {
				return volume.Invalid("spec.drivers", "the entry of %s is immutable", is.Name)
			}
		}
	}
	return nil
}

// serve gets, creates, updates and deletes; resourceVersions are checked.
func (o *others) serve(r *http.Request, a Request) (metav1.Object, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	old := o.stored[a.Ref()]
	switch {
	case old == nil && a.Verb != "post":
		return nil, &volume.ObjectNotFoundError{Ref: a.Ref()}
	case a.Verb == "get":
		return old, nil
	case a.Verb == "delete":
		delete(o.stored, a.Ref())
		o.version++
		gone := clone(a.Kind, old)
		gone.SetResourceVersion(strconv.FormatUint(o.version, 10))
		o.happened("DELETED", a.Kind, gone)
		return old, nil
	case a.Verb != "post" && a.Verb != "put":
		return nil, fmt.Errorf("%s %s is not served", a.Verb, a.Kind.Kind)
	}
	object := typed(a.Kind, a.Kind.New())
	if err := json.NewDecoder(r.Body).Decode(object); err != nil {
		return nil, err
	}
	ref := volume.NewObjectRef(a.Kind.Kind, a.Namespace, object.GetName())
	switch {
	case a.Verb == "post" && o.stored[ref] != nil:
		return nil, fmt.Errorf("%s: %w", ref, objects.ErrExists)
	case a.Verb == "put" && object.GetResourceVersion() != "" && object.GetResourceVersion() != old.GetResourceVersion():
		return nil, fmt.Errorf("%s has version %s: %w", ref, old.GetResourceVersion(), objects.ErrConflict)
	}
	if a.Verb == "put" {
		if err := checkUpdate(old, object); err != nil {
			return nil, err
		}
	}
	o.version++
	object.SetResourceVersion(strconv.FormatUint(o.version, 10))
	if object.GetUID() == "" {
		object.SetUID(types.UID(fmt.Sprintf("other-%d", o.version)))
	}
	o.stored[ref] = object
	o.happened(map[bool]string{true: "ADDED", false: "MODIFIED"}[old == nil], a.Kind, object)
	return object, nil
}

// Lease returns a stored Lease, or nil. It must not be changed.
func (s *Server) Lease(namespace, name string) *coordinationv1.Lease {
	s.others.mu.Lock()
	defer s.others.mu.Unlock()
	lease, _ := s.others.stored[volume.NewObjectRef("Lease", namespace, name)].(*coordinationv1.Lease)
	return lease
}

// DeleteLease deletes a Lease, as an administrator may.
func (s *Server) DeleteLease(namespace, name string) {
	s.others.mu.Lock()
	defer s.others.mu.Unlock()
	delete(s.others.stored, volume.NewObjectRef("Lease", namespace, name))
}
