package fakehost

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
)

// objectMap holds the objects that roles return, by reference, each beside a
// private copy.
type objectMap struct {
	mu    sync.Mutex
	byRef map[volume.ObjectRef]object
	past  []object // replaced or deleted, may still be in a caller's hands
}

type object struct{ lent, pristine runtime.Object }

// Add makes copies of the objects known to the roles; one with the same kind,
// namespace and name is replaced. Kinds other than Secret, ConfigMap,
// Endpoints and ClusterTrustBundle (certificates.k8s.io/v1 or v1beta1) end the test: no
// role could return them.
func (h *Host) Add(objects ...metav1.Object) {
	h.t.Helper()
	for _, o := range objects {
		ref, copied, ok := referTo(o)
		if !ok {
			h.t.Fatalf("fakehost: no role returns a %T", o)
		}
		h.objects.put(ref, object{lent: copied, pristine: copied.DeepCopyObject()})
	}
}

// Delete makes an object unknown to the roles. One that is not there stays so.
func (h *Host) Delete(ref volume.ObjectRef) {
	h.objects.mu.Lock()
	defer h.objects.mu.Unlock()
	if old, ok := h.objects.byRef[ref]; ok {
		h.objects.past = append(h.objects.past, old)
		delete(h.objects.byRef, ref)
	}
}

func referTo(o metav1.Object) (volume.ObjectRef, runtime.Object, bool) {
	switch o := o.(type) {
	case *v1.Secret:
		return volume.NewObjectRef("Secret", o.Namespace, o.Name), o.DeepCopy(), true
	case *v1.ConfigMap:
		return volume.NewObjectRef("ConfigMap", o.Namespace, o.Name), o.DeepCopy(), true
	case *kubeapi.Endpoints:
		return volume.NewObjectRef("Endpoints", o.Namespace, o.Name), o.DeepCopy(), true
	}
	if bundle, ok := kubeapi.TrustBundleOf(o); ok {
		return volume.NewObjectRef("ClusterTrustBundle", "", bundle.Name), o.(runtime.Object).DeepCopyObject(), true
	}
	return volume.ObjectRef{}, nil, false
}

func (m *objectMap) put(ref volume.ObjectRef, o object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byRef == nil {
		m.byRef = make(map[volume.ObjectRef]object)
	}
	if old, ok := m.byRef[ref]; ok {
		m.past = append(m.past, old)
	}
	m.byRef[ref] = o
}

// get returns the object itself, not a copy, so that a change is found out.
func get[T runtime.Object](m *objectMap, kind, namespace, name string) (T, error) {
	ref := volume.NewObjectRef(kind, namespace, name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if o, ok := m.byRef[ref]; ok {
		return o.lent.(T), nil
	}
	var none T
	return none, &volume.ObjectNotFoundError{Ref: ref}
}

func (m *objectMap) trustBundles() []kubeapi.TrustBundle {
	m.mu.Lock()
	defer m.mu.Unlock()
	var bundles []kubeapi.TrustBundle
	for _, o := range m.byRef {
		if b, ok := kubeapi.TrustBundleOf(o.lent); ok {
			bundles = append(bundles, b)
		}
	}
	return bundles
}

func (m *objectMap) assertUnchanged(t testing.TB) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.past
	for _, o := range m.byRef {
		all = append(all, o)
	}
	for _, o := range all {
		if diff := cmp.Diff(o.pristine, o.lent); diff != "" {
			t.Errorf("an object that a role returned was changed by its reader (-before +after):\n%s", diff)
		}
	}
}
