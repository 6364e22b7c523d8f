package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podvol/podvol/volume/objects"
)

func (s *Server) write(r *http.Request, a Request) (metav1.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.Verb == "delete" {
		return s.remove(r, a)
	}
	object, err := s.sent(r, a)
	if err != nil {
		return nil, err
	}
	if err := fitsPath(object, a); err != nil {
		return nil, err
	}
	switch {
	case a.Verb == "post":
		if err := begin(a.Kind, object); err != nil {
			return nil, err
		}
		name := object.GetName()
		object, err = s.store.Create(r.Context(), object)
		switch {
		case err == nil:
			s.happened("ADDED", a, object)
		case errors.Is(err, objects.ErrExists):
			err = apierrors.NewAlreadyExists(a.resource(), name)
		}
	case a.Status:
		if object, err = s.updateStatus(r.Context(), object); err == nil {
			s.happenedTo(r.Context(), a, object)
		}
	default:
		if object, err = s.store.Update(r.Context(), object); err == nil {
			s.happenedTo(r.Context(), a, object)
		}
	}
	return object, err
}

// sent is the object in a write request.
func (s *Server) sent(r *http.Request, a Request) (metav1.Object, error) {
	if a.Verb == "patch" {
		return s.patched(r, a)
	}
	object := a.Kind.New()
	if err := json.NewDecoder(r.Body).Decode(object); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if object.GetResourceVersion() == "0" {
		object.SetResourceVersion("") // both say that any version will do
	}
	return object, nil
}

// fitsPath sets an object's namespace from the path. It refuses another namespace
// and another name.
func fitsPath(object metav1.Object, a Request) error {
	if object.GetNamespace() == "" {
		object.SetNamespace(a.Namespace)
	}
	switch {
	case object.GetNamespace() != a.Namespace:
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	case a.Verb != "post" && object.GetName() != a.Name:
		return apierrors.NewBadRequest("the name of the object does not match the name on the URL")
	}
	return nil
}

// updateStatus takes the metadata along, as an API server does. Only the spec
// stays.
func (s *Server) updateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	stored, err := s.store.UpdateStatus(ctx, object)
	if err != nil {
		return nil, err
	}
	stored.SetLabels(object.GetLabels())
	stored.SetAnnotations(object.GetAnnotations())
	stored.SetFinalizers(object.GetFinalizers())
	stored.SetOwnerReferences(object.GetOwnerReferences())
	return s.store.Update(ctx, stored) // which changes nothing if they are the same
}

// begin turns a sent object into a created one. The server sets its identity, and
// most kinds begin with a status of their own.
func begin(kind objects.Kind, object metav1.Object) error {
	if object.GetName() == "" && object.GetGenerateName() != "" {
		object.SetName(object.GetGenerateName() + string(objects.NewUID()[:5]))
	}
	if reasons := validation.IsDNS1123Subdomain(object.GetName()); object.GetName() != "" && len(reasons) > 0 {
		return apierrors.NewInvalid(kind.GroupKind(), object.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("metadata", "name"), object.GetName(), strings.Join(reasons, ", "))})
	}
	object.SetUID("")
	object.SetCreationTimestamp(metav1.Time{})
	switch o := object.(type) {
	case *v1.Pod:
		o.Status = v1.PodStatus{Phase: v1.PodPending}
	case *v1.PersistentVolume:
		o.Status = v1.PersistentVolumeStatus{Phase: v1.VolumePending}
	case *v1.PersistentVolumeClaim:
		o.Status = v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending}
	}
	return nil
}

// remove returns the object as it is now, or its last state.
func (s *Server) remove(r *http.Request, a Request) (metav1.Object, error) {
	var options metav1.DeleteOptions
	if err := json.NewDecoder(r.Body).Decode(&options); err != nil && !errors.Is(err, io.EOF) {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var p objects.Preconditions
	if o := options.Preconditions; o != nil {
		p = objects.Preconditions{UID: deref(o.UID), ResourceVersion: deref(o.ResourceVersion)}
	}
	last, err := s.store.Get(r.Context(), a.Ref())
	if err != nil {
		return nil, err
	}
	if err := s.store.Delete(r.Context(), a.Ref(), p); err != nil {
		return nil, err
	}
	s.happenedTo(r.Context(), a, last)
	if left, err := s.store.Get(r.Context(), a.Ref()); err == nil {
		last = left
	}
	return last, nil
}

func deref[T ~string](p *T) T {
	if p == nil {
		return ""
	}
	return *p
}

// written answers a write.
func written(w http.ResponseWriter, a Request, object metav1.Object, err error) {
	switch {
	case err != nil:
		answer(w, a, nil, err)
	case a.Verb == "post":
		reply(w, http.StatusCreated, object)
	case a.Verb == "delete" && object.GetDeletionTimestamp() == nil: // it is gone
		reply(w, http.StatusOK, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
			Details: &metav1.StatusDetails{Name: a.Name, Kind: plural(a.Kind.Kind), Group: a.Kind.Group, UID: object.GetUID()}})
	default:
		reply(w, http.StatusOK, object)
	}
}
