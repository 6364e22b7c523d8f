package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// apiServer serves an embedded store as the Kubernetes API does, as far as
// podvol asks for it: single objects, lists and watches by namespace and name,
// initial events, expired versions, preconditions.
type apiServer struct {
	store *objects.Store

	mu       sync.Mutex
	version  uint64
	expired  uint64 // watches from this version or below are too old
	events   []apiEvent
	news     chan struct{} // closed with the next event
	refuse   func(*http.Request) *metav1.Status
	requests []string
	drop     context.CancelFunc // ends all watches
	dropped  context.Context
}

type apiEvent struct {
	version uint64
	kind    string
	Type    string        `json:"type"`
	Object  metav1.Object `json:"object"`
}

func newAPIServer() *apiServer {
	s := &apiServer{store: objects.NewStore(), news: make(chan struct{})}
	s.dropped, s.drop = context.WithCancel(context.Background())
	return s
}

// refuseAll answers every request that refuse has a status for with that;
// nil: none.
func (s *apiServer) refuseAll(refuse func(*http.Request) *metav1.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

// dropWatches ends all watches that are open, as a broken connection does.
func (s *apiServer) dropWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	s.dropped, s.drop = context.WithCancel(context.Background())
}

// forget lets all versions expire that have been given so far.
func (s *apiServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expired, s.events = s.version, nil
}

// asked returns the requests so far, and forgets them.
func (s *apiServer) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.requests
	s.requests = nil
	return all
}

// apiRequest is a request's path and verb.
type apiRequest struct {
	kind      objects.Kind
	namespace string
	name      string
	status    bool
	verb      string
}

func (r apiRequest) ref() volume.ObjectRef {
	return volume.NewObjectRef(r.kind.Kind, r.namespace, r.name)
}

func plural(kind string) string {
	kind = strings.ToLower(kind)
	if strings.HasSuffix(kind, "s") {
		return kind + "es"
	}
	return kind + "s"
}

func parseRequest(r *http.Request) (apiRequest, bool) {
	for _, kind := range objects.Kinds() {
		prefix := "/apis/" + kind.Group + "/" + kind.Version + "/"
		if kind.Group == "" {
			prefix = "/api/" + kind.Version + "/"
		}
		rest, ok := strings.CutPrefix(r.URL.Path, prefix)
		if !ok {
			continue
		}
		a := apiRequest{kind: kind, verb: strings.ToLower(r.Method)}
		parts := strings.Split(rest, "/")
		if len(parts) > 2 && parts[0] == "namespaces" {
			a.namespace, parts = parts[1], parts[2:]
		}
		if parts[0] != plural(kind.Kind) {
			continue
		}
		if len(parts) > 1 {
			a.name = parts[1]
		}
		a.status = len(parts) > 2 && parts[2] == "status"
		switch {
		case r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1":
			a.verb = "watch"
		case a.verb == "get" && a.name == "":
			a.verb = "list"
		}
		if name, ok := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="); ok {
			a.name = name
		}
		return a, true
	}
	return apiRequest{}, false
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, ok := parseRequest(r)
	if refusal := s.note(a, r); refusal != nil {
		reply(w, refusal)
		return
	}
	if !ok {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	switch a.verb {
	case "get":
		object, err := s.store.Get(r.Context(), a.ref())
		answer(w, a, object, err)
	case "list":
		s.list(w, r, a)
	case "watch":
		s.watch(w, r, a)
	default:
		object, err := s.write(r, a)
		answer(w, a, object, err)
	}
}

func (s *apiServer) note(a apiRequest, r *http.Request) *metav1.Status {
	s.mu.Lock()
	s.requests = append(s.requests, strings.TrimSpace(a.verb+" "+a.ref().String()))
	refuse := s.refuse
	s.mu.Unlock()
	if refuse == nil {
		return nil
	}
	return refuse(r) // which may wait
}

func (s *apiServer) write(r *http.Request, a apiRequest) (metav1.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.verb == "delete" {
		return s.remove(r, a)
	}
	object := a.kind.New()
	if err := json.NewDecoder(r.Body).Decode(object); err != nil {
		return nil, err
	}
	var err error
	switch {
	case a.verb == "post":
		if object, err = s.store.Create(r.Context(), object); err == nil {
			s.happened("ADDED", a, object)
		}
	case a.status:
		if object, err = s.store.UpdateStatus(r.Context(), object); err == nil {
			s.happened("MODIFIED", a, object)
		}
	default:
		if object, err = s.store.Update(r.Context(), object); err == nil {
			a.name = object.GetName()
			s.happenedTo(r.Context(), a, object)
		}
	}
	return object, err
}

func (s *apiServer) remove(r *http.Request, a apiRequest) (metav1.Object, error) {
	var options metav1.DeleteOptions
	if err := json.NewDecoder(r.Body).Decode(&options); err != nil {
		return nil, err
	}
	var p objects.Preconditions
	if o := options.Preconditions; o != nil {
		p = objects.Preconditions{UID: deref(o.UID), ResourceVersion: deref(o.ResourceVersion)}
	}
	old, err := s.store.Get(r.Context(), a.ref())
	if err != nil {
		return nil, err
	}
	if err := s.store.Delete(r.Context(), a.ref(), p); err != nil {
		return nil, err
	}
	s.happenedTo(r.Context(), a, old)
	return old, nil
}

func deref[T ~string](p *T) T {
	if p == nil {
		return ""
	}
	return *p
}

// happenedTo is [apiServer.happened] for an object that may be gone now.
func (s *apiServer) happenedTo(ctx context.Context, a apiRequest, last metav1.Object) {
	if object, err := s.store.Get(ctx, a.ref()); err == nil {
		s.happened("MODIFIED", a, object)
		return
	}
	gone := clone(a.kind, last)
	gone.SetResourceVersion(strconv.FormatUint(s.version+1, 10)) // what the store counts for it
	s.happened("DELETED", a, gone)
}

func clone(kind objects.Kind, object metav1.Object) metav1.Object {
	encoded, _ := json.Marshal(object) // API objects can be encoded
	c := kind.New()
	_ = json.Unmarshal(encoded, c)
	return c
}

func (s *apiServer) happened(what string, a apiRequest, object metav1.Object) {
	version, _ := strconv.ParseUint(object.GetResourceVersion(), 10, 64) // the store's are numbers
	if version <= s.version {
		return // nothing has changed
	}
	s.version = version
	s.events = append(s.events, apiEvent{version: version, kind: a.kind.Kind, Type: what, Object: clone(a.kind, object)})
	close(s.news)
	s.news = make(chan struct{})
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request, a apiRequest) {
	items, version, err := s.snapshot(r.Context(), a)
	if err != nil {
		answer(w, a, nil, err)
		return
	}
	reply(w, map[string]any{"kind": a.kind.Kind + "List", "apiVersion": a.kind.GroupVersion().String(),
		"metadata": map[string]string{"resourceVersion": version}, "items": items})
}

func (s *apiServer) snapshot(ctx context.Context, a apiRequest) ([]metav1.Object, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.store.List(ctx, a.kind.Kind, a.namespace)
	selected := []metav1.Object{}
	for _, object := range all {
		if a.name == "" || object.GetName() == a.name {
			selected = append(selected, object)
		}
	}
	return selected, strconv.FormatUint(s.version, 10), err
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, a apiRequest) {
	query := r.URL.Query()
	from := query.Get("resourceVersion")
	stream := json.NewEncoder(w)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	_ = flush()
	if query.Get("sendInitialEvents") == "true" || from == "" || from == "0" {
		items, version, _ := s.snapshot(r.Context(), a)
		for _, object := range items {
			_ = stream.Encode(apiEvent{Type: "ADDED", Object: object})
		}
		bookmark := a.kind.New()
		bookmark.SetResourceVersion(version)
		bookmark.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		_ = stream.Encode(apiEvent{Type: "BOOKMARK", Object: typed(a.kind, bookmark)})
		_ = flush()
		from = version
	}
	after, _ := strconv.ParseUint(from, 10, 64)
	s.mu.Lock()
	dropped := s.dropped
	s.mu.Unlock()
	for {
		events, news, expired := s.since(a, after)
		if expired {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ERROR", "object": status(http.StatusGone, metav1.StatusReasonExpired, a, "too old resource version")})
			return
		}
		for _, e := range events {
			if err := stream.Encode(e); err != nil {
				return
			}
			after = e.version
		}
		_ = flush()
		select {
		case <-news:
		case <-r.Context().Done():
			return
		case <-dropped.Done():
			return
		}
	}
}

// typed gives an object the kind that only stored ones have.
func typed(kind objects.Kind, object metav1.Object) metav1.Object {
	encoded, _ := json.Marshal(map[string]any{"kind": kind.Kind, "apiVersion": kind.GroupVersion().String()})
	_ = json.Unmarshal(encoded, object)
	return object
}

func (s *apiServer) since(a apiRequest, after uint64) (events []apiEvent, news chan struct{}, expired bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.version > after && e.kind == a.kind.Kind && (a.name == "" || a.name == e.Object.GetName()) && (a.namespace == "" || a.namespace == e.Object.GetNamespace()) {
			events = append(events, e)
		}
	}
	return events, s.news, after < s.expired
}

// answer sends an object, or the API's words for a store's error.
func answer(w http.ResponseWriter, a apiRequest, object metav1.Object, err error) {
	switch {
	case err == nil:
		reply(w, object)
	case errors.Is(err, volume.ErrNotFound):
		reply(w, status(http.StatusNotFound, metav1.StatusReasonNotFound, a, err.Error()))
	case errors.Is(err, objects.ErrExists):
		reply(w, status(http.StatusConflict, metav1.StatusReasonAlreadyExists, a, err.Error()))
	case errors.Is(err, objects.ErrConflict):
		reply(w, status(http.StatusConflict, metav1.StatusReasonConflict, a, err.Error()))
	default:
		if invalid, ok := errors.AsType[*volume.InvalidSpecError](err); ok {
			refusal := status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, a, err.Error())
			refusal.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Field: invalid.Field, Message: invalid.Reason}}
			reply(w, refusal)
			return
		}
		reply(w, status(http.StatusInternalServerError, metav1.StatusReasonInternalError, a, err.Error()))
	}
}

func status(code int32, reason metav1.StatusReason, a apiRequest, message string) *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code, Reason: reason,
		Message: message, Details: &metav1.StatusDetails{Name: a.name, Kind: plural(a.kind.Kind), Group: a.kind.Group}}
}

func reply(w http.ResponseWriter, what any) {
	var body bytes.Buffer
	code := http.StatusOK
	if s, ok := what.(*metav1.Status); ok {
		code = int(s.Code)
		if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
			w.Header().Set("Retry-After", fmt.Sprint(s.Details.RetryAfterSeconds))
		}
	}
	_ = json.NewEncoder(&body).Encode(what)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(body.Bytes())
}

// direct writes a config map past all faults.
func (s *apiServer) direct(t *testing.T, method string, object metav1.Object) {
	t.Helper()
	kind, ref, err := objects.Describe(object)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(method, "/", bytes.NewReader(body)).WithContext(t.Context())
	if _, err := s.write(r, apiRequest{kind: kind, namespace: ref.Namespace, name: ref.Name, verb: strings.ToLower(method)}); err != nil {
		t.Fatal(err)
	}
}
