package clustertest

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podvol/podvol/volume/objects"
)

// page is the rest of a list, all of it as of one version.
type page struct {
	items   []metav1.Object
	version uint64
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, a Request) {
	query := r.URL.Query()
	all, err := s.beginOrGoOn(r.Context(), a, query)
	if err != nil {
		answer(w, a, nil, err)
		return
	}
	rest := map[string]string{"resourceVersion": strconv.FormatUint(all.version, 10)}
	limit, _ := strconv.Atoi(query.Get("limit"))
	if limit > 0 && limit < len(all.items) && query.Get("resourceVersion") != "0" { // what a cache answers is not cut
		rest["continue"] = s.keep(page{all.items[limit:], all.version})
		all.items = all.items[:limit]
	}
	items := make([]metav1.Object, 0, len(all.items))
	for _, object := range all.items {
		items = append(items, untyped(object))
	}
	reply(w, http.StatusOK, map[string]any{"kind": a.Kind.Kind + "List", "apiVersion": a.Kind.GroupVersion().String(), "metadata": rest, "items": items})
}

// beginOrGoOn returns the rest of the list from here on.
func (s *Server) beginOrGoOn(ctx context.Context, a Request, query url.Values) (page, error) {
	if token := query.Get("continue"); token != "" {
		return s.kept(token)
	}
	items, version, err := s.snapshot(ctx, a)
	if asked, _ := strconv.ParseUint(query.Get("resourceVersion"), 10, 64); err == nil && asked > version {
		err = tooLarge(asked, version)
	}
	return page{items, version}, err
}

func (s *Server) keep(p page) (token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages = append(s.pages, p)
	return strconv.Itoa(len(s.pages) - 1)
}

func (s *Server) kept(token string) (page, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := strconv.Atoi(token)
	switch {
	case err != nil || n < 0 || n >= len(s.pages):
		return page{}, apierrors.NewBadRequest("continue key is not valid")
	case s.pages[n].version <= s.expired:
		return page{}, apierrors.NewResourceExpired("The provided continue parameter is too old")
	}
	return s.pages[n], nil
}

// tooLarge is the answer to a client that asks for a later version than there is.
func tooLarge(asked, current uint64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", asked, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// untyped is an object in the form of a list's item: only the list has its type.
func untyped(object metav1.Object) metav1.Object {
	bare := reflect.New(reflect.TypeOf(object).Elem())
	bare.Elem().Set(reflect.ValueOf(object).Elem())
	bare.Interface().(runtime.Object).GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return bare.Interface().(metav1.Object)
}

func (s *Server) snapshot(ctx context.Context, a Request) ([]metav1.Object, uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if isOther(a.Kind) {
		items, version := s.others.list(a)
		return items, version, nil
	}
	all, err := s.store.List(ctx, a.Kind.Kind, a.Namespace)
	selected := []metav1.Object{}
	for _, object := range all {
		if a.selects(object) {
			selected = append(selected, object)
		}
	}
	return selected, s.version, err
}

// selects reports whether the request asks for an object of the kind.
func (r Request) selects(object metav1.Object) bool {
	if pod, ok := object.(*v1.Pod); ok && r.node != "" && pod.Spec.NodeName != r.node {
		return false
	}
	return (r.Name == "" || r.Name == object.GetName()) && (r.Namespace == "" || r.Namespace == object.GetNamespace())
}

// checkWatch refuses invalid options.
func checkWatch(query url.Values) error {
	if query.Get("sendInitialEvents") == "" || query.Get("resourceVersionMatch") == string(metav1.ResourceVersionMatchNotOlderThan) {
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "",
		field.ErrorList{field.Forbidden(field.NewPath("resourceVersionMatch"), "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")})
}

// endOfInitialEvents is the bookmark that follows them.
func endOfInitialEvents(kind objects.Kind, version uint64) metav1.Object {
	bookmark := typed(kind, kind.New())
	bookmark.SetResourceVersion(strconv.FormatUint(version, 10))
	bookmark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return bookmark
}
