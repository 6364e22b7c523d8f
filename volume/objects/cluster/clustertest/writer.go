package clustertest

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Writer returns a writer to the server that hits no faults. The watches see its
// writes.
func (s *Server) Writer() objects.Writer { return writer{s} }

// Restore creates an object as it is, with its UID and its status, as a restored
// database does. The watches see it. The errors are as of [objects.Store].
func (s *Server) Restore(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	kind, ref, err := objects.Describe(object)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	stored, err := s.store.Create(ctx, object)
	if err == nil {
		s.happened("ADDED", Request{Kind: kind, Namespace: ref.Namespace, Name: ref.Name}, stored)
	}
	return stored, err
}

type writer struct{ server *Server }

func (w writer) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return w.write(ctx, "post", false, object)
}

func (w writer) Update(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return w.write(ctx, "put", false, object)
}

func (w writer) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return w.write(ctx, "put", true, object)
}

func (w writer) Delete(ctx context.Context, ref volume.ObjectRef, p objects.Preconditions) error {
	options := metav1.DeleteOptions{}
	if p != (objects.Preconditions{}) {
		options.Preconditions = &metav1.Preconditions{UID: pointer(p.UID), ResourceVersion: pointer(p.ResourceVersion)}
	}
	for _, kind := range objects.Kinds() {
		if kind.Kind == ref.Kind {
			_, err := w.send(ctx, Request{Kind: kind, Namespace: ref.Namespace, Name: ref.Name, Verb: "delete"}, options)
			return err
		}
	}
	return &objects.UnknownKindError{Kind: ref.Kind}
}

func pointer[T string | types.UID](s T) *T {
	if s == "" {
		return nil
	}
	return &s
}

func (w writer) write(ctx context.Context, verb string, status bool, object metav1.Object) (metav1.Object, error) {
	kind, ref, err := objects.Describe(object)
	if err != nil {
		return nil, err
	}
	return w.send(ctx, Request{Kind: kind, Namespace: ref.Namespace, Name: ref.Name, Verb: verb, Status: status}, object)
}

func (w writer) send(ctx context.Context, a Request, what any) (metav1.Object, error) {
	body, err := json.Marshal(what)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "/", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return w.server.write(r, a)
}
