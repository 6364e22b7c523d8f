package registry_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podvol/podvol/util/testenv/ociimage"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
	"github.com/podvol/podvol/volume/plugins/image/internal/registry"
)

// serve serves a registry, and returns the reference of a name there.
func serve(t *testing.T, r http.Handler, name string) oci.Reference {
	t.Helper()
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	ref, err := oci.Parse(strings.TrimPrefix(server.URL, "http://") + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func client(t *testing.T, credentials registry.Credentials, stall time.Duration) *registry.Client {
	transport := registry.NewTransport()
	t.Cleanup(transport.CloseIdleConnections)
	return registry.New(registry.Config{Transport: transport, Stall: stall}, credentials)
}

func TestAuthorization(t *testing.T) {
	for _, bearer := range []bool{false, true} {
		r := &ociimage.Registry{User: "robot", Password: "pass:word", Bearer: bearer}
		want := r.Add("web:1")
		ref := serve(t, r, "web:1")
		got, err := client(t, registry.Credentials{Username: "robot", Password: "pass:word"}, time.Hour).Digest(t.Context(), ref)
		if err != nil || got != want {
			t.Errorf("bearer %v: %s, %v", bearer, got, err)
		}
		for _, wrong := range []registry.Credentials{{}, {Username: "robot", Password: "guess"}} {
			_, err := client(t, wrong, time.Hour).Manifest(t.Context(), ref)
			if !errors.Is(err, registry.ErrUnauthorized) || strings.Contains(err.Error(), "guess") {
				t.Errorf("bearer %v, %+v: %v", bearer, wrong, err)
			}
		}
	}
}

// What a registry says is shown, without the secrets that it was sent.
func TestAnswersAreMasked(t *testing.T) {
	r := &ociimage.Registry{Intercept: func(w http.ResponseWriter, q *http.Request) bool {
		if q.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		_, password, _ := q.BasicAuth()
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"errors":[{"message":"no \u0007 `+password+` `+strings.TrimPrefix(q.Header.Get("Authorization"), "Basic ")+`"}]}`)
		return true
	}}
	ref := serve(t, r, "web:1")
	_, err := client(t, registry.Credentials{Username: "u", Password: "hunter2"}, time.Hour).Manifest(t.Context(), ref)
	if err == nil || !strings.Contains(err.Error(), "no   *** ***") || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Manifest = %v", err)
	}
}

func TestTokenServiceMustHaveTLS(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://evil.test/token"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer server.Close()
	ref, err := oci.Parse("registry.test/web:1")
	if err != nil {
		t.Fatal(err)
	}
	transport, ok := server.Client().Transport.(*http.Transport)
	if !ok {
		t.Fatal("no transport")
	}
	defer transport.CloseIdleConnections()
	c := registry.New(registry.Config{Transport: to{transport, strings.TrimPrefix(server.URL, "https://")}, Stall: time.Hour}, registry.Credentials{Username: "u", Password: "p"})
	if _, err := c.Digest(t.Context(), ref); err == nil || !strings.Contains(err.Error(), "no https URL") {
		t.Errorf("Digest = %v", err)
	}
}

// to sends all requests to one server.
type to struct {
	http.RoundTripper
	host string
}

func (o to) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.URL.Host != "registry.test" {
		return nil, errors.New("asked " + q.URL.Host)
	}
	q = q.Clone(q.Context())
	q.URL.Host, q.Host = o.host, "example.com"
	return o.RoundTripper.RoundTrip(q)
}

// A blob whose connection breaks is gone on with where it broke.
func TestTornBodies(t *testing.T) {
	content := strings.Repeat("0123456789", 100_000)
	r := &ociimage.Registry{}
	r.Add("web:1", ociimage.Layer{Blob: []byte(content), Title: "f", MediaType: "text/plain"})
	var breaks atomic.Int32
	r.Intercept = func(w http.ResponseWriter, q *http.Request) bool {
		if breaks.Add(-1) < 0 {
			return false
		}
		if q.Header.Get("Range") == "" {
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			_, _ = io.WriteString(w, content[:300_000])
		}
		panic(http.ErrAbortHandler)
	}
	ref := serve(t, r, "web:1")
	for times, whole := range map[int32]bool{1: true, 3: true, 50: false} {
		breaks.Store(times)
		body, err := client(t, registry.Credentials{}, time.Hour).Blob(t.Context(), ref, oci.Descriptor{Digest: ociimage.Digest([]byte(content)), Size: int64(len(content))})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(body)
		body.Close()
		if (err == nil && string(got) == content) != whole {
			t.Errorf("broken %d times: %d of %d bytes, %v", times, len(got), len(content), err)
		}
	}
}

func TestStalledBodies(t *testing.T) {
	stopped := make(chan struct{})
	ref := serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(w, "12")
		_ = http.NewResponseController(w).Flush()
		<-q.Context().Done() // the client has left
		close(stopped)
	}), "web:1")
	body, err := client(t, registry.Credentials{}, 50*time.Millisecond).Blob(t.Context(), ref, oci.Descriptor{Digest: ociimage.Digest(nil), Size: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := io.ReadAll(body); !errors.Is(err, registry.ErrStalled) {
		t.Errorf("ReadAll = %v", err)
	}
	<-stopped
}

func TestNotFound(t *testing.T) {
	r := &ociimage.Registry{}
	r.Add("web:1")
	if _, err := client(t, registry.Credentials{}, time.Hour).Manifest(t.Context(), serve(t, r, "web:2")); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("Manifest = %v", err)
	}
}

func TestKeyring(t *testing.T) {
	ring, err := registry.ParseDockerConfig([]byte(`{"auths":{
		"https://index.docker.io/v1/": {"auth": "aHViOnB3"},
		"quay.io": {"username": "quay", "password": "p"},
		"quay.io/org": {"username": "org", "password": "p"},
		"*.azurecr.io": {"username": "azure", "password": "p"},
		"registry:5000/v2/": {"username": "port", "identitytoken": "t"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"busybox": "hub", "quay.io/a": "quay", "quay.io/org/a": "org quay", "quay.io/organ": "quay", "my.azurecr.io/a": "azure",
		"a.my.azurecr.io/a": "", "registry:5000/a": "port", "registry/a": "hub", "evil.test/quay.io": "",
	} {
		ref, err := oci.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		var users []string
		for _, c := range ring.For(ref) {
			users = append(users, c.Username)
		}
		if got := strings.Join(users, " "); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	old, err := registry.ParseDockerConfig([]byte(`{"quay.io": {"auth": "YTpi"}}`))
	if ref, _ := oci.Parse("quay.io/a"); err != nil || len(old.For(ref)) != 1 || old.For(ref)[0].Password != "b" {
		t.Errorf("an older file: %+v, %v", old, err)
	}
	if _, err := registry.ParseDockerConfig([]byte(`hunter2`)); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("no JSON: %v", err)
	}
}
