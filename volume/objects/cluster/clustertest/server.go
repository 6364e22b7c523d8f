package clustertest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Server serves an embedded store as the Kubernetes API does, as far as podvol
// uses the API:
//
//   - single objects, lists by pages, and watches by namespace, by name and of a
//     node's pods;
//   - initial events, expired versions, preconditions and patches;
//   - service account tokens.
//
// Tests compare its answers with a real one's. It lacks admission, which protects
// volumes and claims by finalizers, the validation of specs, and namespaces. Pods
// have no time to end: they are deleted at once. Leases and events are not
// patched.
type Server struct {
	store  *objects.Store
	others others

	mu       sync.Mutex
	version  uint64
	expired  uint64 // watches from this version or below are too old
	events   []apiEvent
	news     chan struct{} // closed with the next event
	refuse   func(*http.Request) *metav1.Status
	requests []string
	pages    []page                             // the rest of lists
	watches  map[*http.Request]volume.ObjectRef // that are open
	drop     context.CancelFunc                 // ends all watches
	dropped  context.Context
	skew     time.Duration
	tokens   int            // issued so far
	held     map[string]int // kinds whose watches are told nothing
	observe  func(object metav1.Object, gone bool)
}

type apiEvent struct {
	version uint64
	kind    string
	Type    string        `json:"type"`
	Object  metav1.Object `json:"object"`
}

// NewServer returns a server that serves an empty store.
func NewServer() *Server { return NewServerOf(objects.NewStore()) }

// NewServerOf returns a server of a store. From then on, only the server may
// write to the store.
func NewServerOf(store *objects.Store) *Server {
	s := &Server{store: store, held: make(map[string]int), watches: make(map[*http.Request]volume.ObjectRef), news: make(chan struct{}), others: newOthers()}
	s.dropped, s.drop = context.WithCancel(context.Background())
	for _, kind := range objects.Kinds() {
		stored, _ := store.List(context.Background(), kind.Kind, "") // it knows its own kinds
		for _, object := range stored {
			version, _ := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
			s.version = max(s.version, version)
		}
	}
	return s
}

// Refuse makes every request fail that refuse returns a status for; nil: none.
func (s *Server) Refuse(refuse func(*http.Request) *metav1.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

// DropWatches ends all watches that are open, as a broken connection does.
func (s *Server) DropWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
	s.dropped, s.drop = context.WithCancel(context.Background())
}

// Hold stops the events of all watches of a kind, until release is called.
func (s *Server) Hold(kind string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[kind]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.held[kind]--
		s.tell()
	})
}

// Observe calls f with each version that is stored from now on, in order, of the
// kinds that an embedded store keeps. It calls f first with the objects that are
// stored already. For a deleted object it calls f with the last version. f must
// neither change the objects nor call the server.
func (s *Server) Observe(f func(object metav1.Object, gone bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observe = f
	for _, kind := range objects.Kinds() {
		stored, _ := s.store.List(context.Background(), kind.Kind, "")
		for _, object := range stored {
			f(object, false)
		}
	}
}

// tell wakes all watches. s is locked.
func (s *Server) tell() {
	close(s.news)
	s.news = make(chan struct{})
}

// Expire makes all versions expire that have been given so far.
func (s *Server) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expired, s.events = s.version, nil
}

// Asked returns the requests so far, and clears them.
func (s *Server) Asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.requests
	s.requests = nil
	return all
}

// Watched returns the objects of the open watches, in order of kind and name.
func (s *Server) Watched() []volume.ObjectRef {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.watches), func(a, b volume.ObjectRef) int { return cmp.Compare(a.String(), b.String()) })
}

// Request is a parsed request.
type Request struct {
	Kind            objects.Kind
	Namespace, Name string
	Status          bool // of the object alone
	// Verb is get, list, watch, post, put, patch or delete.
	Verb string
	node string // whose pods are selected
}

// Ref returns the requested object; without a name, all of its kind.
func (r Request) Ref() volume.ObjectRef {
	return volume.NewObjectRef(r.Kind.Kind, r.Namespace, r.Name)
}

func (r Request) resource() schema.GroupResource {
	return schema.GroupResource{Group: r.Kind.Group, Resource: plural(r.Kind.Kind)}
}

func plural(kind string) string {
	kind = strings.ToLower(kind)
	if kind == "endpoints" {
		return kind
	}
	if stem, ok := strings.CutSuffix(kind, "y"); ok {
		return stem + "ies"
	}
	if strings.HasSuffix(kind, "s") {
		return kind + "es"
	}
	return kind + "s"
}

// ParseRequest parses a request. It returns false if the request is not for a
// served kind.
func ParseRequest(r *http.Request) (Request, bool) {
	for _, kind := range served() {
		prefix := "/apis/" + kind.Group + "/" + kind.Version + "/"
		if kind.Group == "" {
			prefix = "/api/" + kind.Version + "/"
		}
		rest, ok := strings.CutPrefix(r.URL.Path, prefix)
		if !ok {
			continue
		}
		a := Request{Kind: kind, Verb: strings.ToLower(r.Method)}
		parts := strings.Split(rest, "/")
		if len(parts) > 2 && parts[0] == "namespaces" {
			a.Namespace, parts = parts[1], parts[2:]
		}
		if parts[0] != plural(kind.Kind) {
			continue
		}
		if len(parts) > 1 {
			a.Name = parts[1]
		}
		a.Status = len(parts) > 2 && parts[2] == "status"
		switch {
		case r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1":
			a.Verb = "watch"
		case a.Verb == "get" && a.Name == "":
			a.Verb = "list"
		}
		selector := r.URL.Query().Get("fieldSelector")
		if name, ok := strings.CutPrefix(selector, "metadata.name="); ok {
			a.Name = name
		}
		if node, ok := strings.CutPrefix(selector, "spec.nodeName="); ok {
			a.node = node
		}
		return a, true
	}
	return Request{}, false
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, ok := ParseRequest(r)
	if refusal := s.note(a, r); refusal != nil {
		answer(w, a, nil, &apierrors.StatusError{ErrStatus: *refusal})
		return
	}
	if !ok {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	if isTokenRequest(r, a) {
		object, err := s.issueToken(r, a)
		if missing, ok := errors.AsType[*volume.ObjectNotFoundError](err); ok && missing.Ref.Kind == "Pod" {
			a.Kind, a.Name = podRequest(missing.Ref).Kind, missing.Ref.Name
		}
		written(w, a, object, err)
		return
	}
	if isOther(a.Kind) && a.Verb != "list" && a.Verb != "watch" {
		object, err := s.others.serve(r, a)
		written(w, a, object, err)
		return
	}
	switch a.Verb {
	case "get":
		object, err := s.store.Get(r.Context(), a.Ref())
		answer(w, a, object, err)
	case "list":
		s.list(w, r, a)
	case "watch":
		s.watch(w, r, a)
	default:
		object, err := s.write(r, a)
		written(w, a, object, err)
	}
}

func (s *Server) note(a Request, r *http.Request) *metav1.Status {
	s.mu.Lock()
	s.requests = append(s.requests, strings.TrimSpace(a.Verb+" "+a.Ref().String()))
	refuse := s.refuse
	s.mu.Unlock()
	if refuse == nil {
		return nil
	}
	return refuse(r) // which may wait
}

// happenedTo is [Server.happened] for an object that may be gone now.
func (s *Server) happenedTo(ctx context.Context, a Request, last metav1.Object) {
	if object, err := s.store.Get(ctx, a.Ref()); err == nil {
		s.happened("MODIFIED", a, object)
		return
	}
	gone := clone(a.Kind, last)
	gone.SetResourceVersion(strconv.FormatUint(s.version+1, 10)) // what the store counts for it
	s.happened("DELETED", a, gone)
}

func clone(kind objects.Kind, object metav1.Object) metav1.Object {
	encoded, _ := json.Marshal(object) // API objects can be encoded
	c := kind.New()
	_ = json.Unmarshal(encoded, c)
	return c
}

func (s *Server) happened(what string, a Request, object metav1.Object) {
	version, _ := strconv.ParseUint(object.GetResourceVersion(), 10, 64) // the store's are numbers
	if version <= s.version {
		return // nothing has changed
	}
	s.version = version
	e := apiEvent{version: version, kind: a.Kind.Kind, Type: what, Object: clone(a.Kind, object)}
	s.events = append(s.events, e)
	if s.observe != nil {
		s.observe(e.Object, what == "DELETED")
	}
	s.tell()
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, a Request) {
	query := r.URL.Query()
	if err := checkWatch(query); err != nil {
		answer(w, a, nil, err)
		return
	}
	stream := json.NewEncoder(w)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	_ = flush()
	from := query.Get("resourceVersion")
	if query.Get("sendInitialEvents") == "true" || from == "" || from == "0" {
		items, version, _ := s.snapshot(r.Context(), a)
		for _, object := range items {
			_ = stream.Encode(apiEvent{Type: "ADDED", Object: object})
		}
		if query.Get("allowWatchBookmarks") == "true" {
			_ = stream.Encode(apiEvent{Type: "BOOKMARK", Object: endOfInitialEvents(a.Kind, version)})
		}
		_ = flush()
		from = strconv.FormatUint(version, 10)
	}
	after, _ := strconv.ParseUint(from, 10, 64)
	dropped, end := s.open(r, a)
	defer end()
	timeout, stop := timeoutOf(r)
	defer stop()
	for {
		events, upTo, news, expired := s.since(a, after)
		if expired {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ERROR", "object": Status(http.StatusGone, metav1.StatusReasonExpired, a, "too old resource version")})
			return
		}
		for _, e := range events {
			if err := stream.Encode(e); err != nil {
				return
			}
		}
		after = upTo
		_ = flush()
		select {
		case <-news:
		case <-r.Context().Done():
			return
		case <-dropped.Done():
			return
		case <-timeout:
			return
		}
	}
}

// open counts a watch as open until end is called.
func (s *Server) open(r *http.Request, a Request) (dropped context.Context, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches[r] = a.Ref()
	return s.dropped, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, r)
	}
}

// timeoutOf is how long a watch stays open.
func timeoutOf(r *http.Request) (over <-chan time.Time, stop func()) {
	seconds, err := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	if err != nil || seconds <= 0 {
		return nil, func() {}
	}
	timer := time.NewTimer(time.Duration(seconds) * time.Second)
	return timer.C, func() { timer.Stop() }
}

// typed gives an object its kind, which only stored objects have.
func typed(kind objects.Kind, object metav1.Object) metav1.Object {
	encoded, _ := json.Marshal(map[string]any{"kind": kind.Kind, "apiVersion": kind.GroupVersion().String()})
	_ = json.Unmarshal(encoded, object)
	return object
}

// since returns the events after a version, and the last version that it has
// read.
func (s *Server) since(a Request, after uint64) (events []apiEvent, upTo uint64, news chan struct{}, expired bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case isOther(a.Kind):
		events, news = s.others.since(a, after)
		for _, e := range events {
			upTo = max(upTo, e.version)
		}
		return events, max(after, upTo), news, false
	case s.held[a.Kind.Kind] > 0:
		return nil, after, s.news, false
	}
	next, _ := slices.BinarySearchFunc(s.events, after+1, func(e apiEvent, version uint64) int { return cmp.Compare(e.version, version) })
	for _, e := range s.events[next:] {
		if e.kind == a.Kind.Kind && a.selects(e.Object) {
			events = append(events, e)
		}
	}
	return events, max(after, s.version), s.news, after < s.expired
}

// answer sends an object, or a store's error in the API's words.
func answer(w http.ResponseWriter, a Request, object metav1.Object, err error) {
	if err == nil {
		reply(w, http.StatusOK, object)
		return
	}
	refusal := refusalOf(a, err)
	if d := refusal.Details; d != nil && d.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", fmt.Sprint(d.RetryAfterSeconds))
	}
	reply(w, int(refusal.Code), refusal)
}

func refusalOf(a Request, err error) *metav1.Status {
	if refused, ok := errors.AsType[*apierrors.StatusError](err); ok {
		refused.ErrStatus.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		return &refused.ErrStatus
	}
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return Status(http.StatusNotFound, metav1.StatusReasonNotFound, a, err.Error())
	case errors.Is(err, objects.ErrExists):
		return Status(http.StatusConflict, metav1.StatusReasonAlreadyExists, a, err.Error())
	case errors.Is(err, objects.ErrConflict):
		refusal := Status(http.StatusConflict, metav1.StatusReasonConflict, a, err.Error())
		if a.Verb == "delete" {
			refusal.Details.Kind = a.Kind.Kind
		}
		return refusal
	}
	if invalid, ok := errors.AsType[*volume.InvalidSpecError](err); ok {
		refusal := Status(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, a, err.Error())
		refusal.Details.Kind = a.Kind.Kind
		refusal.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Field: invalid.Field, Message: invalid.Reason}}
		return refusal
	}
	return Status(http.StatusInternalServerError, metav1.StatusReasonInternalError, a, err.Error())
}

// Status is the answer for a failed request.
func Status(code int32, reason metav1.StatusReason, a Request, message string) *metav1.Status {
	return &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: code, Reason: reason,
		Message: message, Details: &metav1.StatusDetails{Name: a.Name, Kind: plural(a.Kind.Kind), Group: a.Kind.Group}}
}

func reply(w http.ResponseWriter, code int, what any) {
	var body bytes.Buffer
	_ = json.NewEncoder(&body).Encode(what)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(body.Bytes())
}

// Store is the served store. It must only be read: writes past the server do not
// reach the watches.
func (s *Server) Store() *objects.Store { return s.store }

// Direct writes an object past all faults.
func (s *Server) Direct(t testing.TB, method string, object metav1.Object) {
	t.Helper()
	if err := s.direct(t.Context(), method, object, false); err != nil {
		t.Fatal(err)
	}
}

// DirectStatus writes the status of an object past all faults. The errors are as
// in [objects.Store].
func (s *Server) DirectStatus(ctx context.Context, object metav1.Object) error {
	return s.direct(ctx, http.MethodPut, object, true)
}

func (s *Server) direct(ctx context.Context, method string, object metav1.Object, status bool) error {
	kind, ref, err := objects.Describe(object)
	if err != nil {
		return err
	}
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	r := httptest.NewRequest(method, "/", bytes.NewReader(body)).WithContext(ctx)
	_, err = s.write(r, Request{Kind: kind, Namespace: ref.Namespace, Name: ref.Name, Status: status, Verb: strings.ToLower(method)})
	return err
}
