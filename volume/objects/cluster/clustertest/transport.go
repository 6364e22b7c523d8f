package clustertest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/podvol/podvol/util/fault"
)

// Transport connects a client with a handler without a network, so that time can
// be virtual.
type Transport struct {
	fault.Injector[Request]
	handler http.Handler

	mu   sync.Mutex
	down error // nil: the server can be reached
	late late
}

// NewTransport returns a transport to a handler.
func NewTransport(handler http.Handler) *Transport { return &Transport{handler: handler} }

// SetDown makes every later request fail with err; nil: none.
func (m *Transport) SetDown(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = err
}

func (m *Transport) isDown() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.down
}

// RoundTrip implements [http.RoundTripper]. An injected fault hits a request
// before it is served, or after; then its answer is lost or late.
func (m *Transport) RoundTrip(r *http.Request) (response *http.Response, err error) {
	if err := m.isDown(); err != nil {
		return nil, err
	}
	a, _ := ParseRequest(r)
	if m.delays(a) {
		return nil, m.sendLate(r)
	}
	err = m.Do(r.Context(), a, func() (err error) {
		response, err = m.serve(r)
		return err
	})
	if err != nil && response != nil {
		response.Body.Close()
		return nil, err
	}
	return response, err
}

func (m *Transport) serve(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	body, w := io.Pipe()
	response := &memoryResponse{header: make(http.Header), body: w, sent: make(chan struct{})}
	request := r.Clone(ctx)
	if request.Body == nil {
		request.Body = http.NoBody
	}
	go func() {
		m.server().ServeHTTP(response, request)
		response.WriteHeader(http.StatusOK)
		w.Close()
	}()
	context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	select {
	case <-response.sent:
		return &http.Response{StatusCode: response.code, Status: http.StatusText(response.code), Header: response.header, Request: r,
			Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1, Body: memoryBody{body, cancel}}, nil
	case <-ctx.Done():
		cancel()
		return nil, context.Cause(ctx)
	}
}

type memoryBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b memoryBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

type memoryResponse struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	code   int
	sent   chan struct{}
}

func (r *memoryResponse) Header() http.Header { return r.header }
func (r *memoryResponse) Flush()              { r.WriteHeader(http.StatusOK) }

func (r *memoryResponse) WriteHeader(code int) {
	r.once.Do(func() {
		r.code = code
		close(r.sent)
	})
}

func (r *memoryResponse) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(b)
}

// ErrUnreachable is the error of a server that is down.
var ErrUnreachable = errors.New("no route to host")

// Clientset returns a Clientset of a server that is reached by transport, or
// at a URL.
func Clientset(t testing.TB, url string, transport http.RoundTripper) kubernetes.Interface {
	t.Helper()
	json := rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}
	c, err := kubernetes.NewForConfig(&rest.Config{Host: url, Transport: transport, QPS: -1, ContentConfig: json})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// SetHandler replaces the server.
func (m *Transport) SetHandler(handler http.Handler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.handler = handler
}

func (m *Transport) server() http.Handler {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.handler
}
