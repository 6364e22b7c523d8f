package registry_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
	"github.com/podvol/podvol/volume/plugins/image/internal/registry"
)

// Refusals and tokens whose bodies come to no end hold nobody, as blobs do not.
func TestStalledRefusals(t *testing.T) {
	for name, status := range map[string]int{"refusal": http.StatusInternalServerError, "challenge": http.StatusUnauthorized, "token": http.StatusOK} {
		ref := serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if name == "token" && q.URL.Path != "/token" {
				w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+q.Host+`/token"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			w.WriteHeader(status)
			_ = http.NewResponseController(w).Flush()
			<-q.Context().Done() // the client has left
		}), "web:1")
		if _, err := client(t, registry.Credentials{}, 50*time.Millisecond).Manifest(t.Context(), ref); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A registry that redirects to another port of its machine sends the credentials not there.
func TestRedirectsCarryNoCredentials(t *testing.T) {
	var seen atomic.Value
	storage := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		seen.Store(q.Method + " " + q.Header.Get("Authorization"))
	}))
	defer storage.Close()
	ref := serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch {
		case q.URL.Path == "/token" || q.Header.Get("Authorization") != "":
			http.Redirect(w, q, storage.URL+"/x", http.StatusTemporaryRedirect)
		case q.URL.Path == "/v2/bearer/manifests/1":
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+q.Host+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}), "web:1")
	if _, err := client(t, registry.Credentials{Username: "u", Password: "p"}, time.Hour).Manifest(t.Context(), ref); err != nil || seen.Load() != "GET " {
		t.Errorf("Manifest = %v, and the other port was asked by %q", err, seen.Load())
	}
	ref.Path = "bearer"
	if _, err := client(t, registry.Credentials{IdentityToken: "i"}, time.Hour).Manifest(t.Context(), ref); err == nil || !strings.Contains(err.Error(), "with the credentials") || seen.Load() != "GET " {
		t.Errorf("Manifest = %v, and the other port was asked by %q", err, seen.Load())
	}
}

// The line with the status is a stranger's, as the body is; and no part of a secret is left
// where words end.
func TestStatusLinesAreMasked(t *testing.T) {
	long := strings.Repeat("s", 300)
	for _, line := range []string{"500 no \x1b[31m" + long, "500 " + strings.Repeat("x", 150) + long} {
		ref, err := oci.Parse("registry.test/web:1")
		if err != nil {
			t.Fatal(err)
		}
		c := registry.New(registry.Config{Transport: says(line), Stall: time.Hour}, registry.Credentials{Password: long})
		_, err = c.Manifest(t.Context(), ref)
		if err == nil || strings.Contains(err.Error(), "sss") || strings.Contains(err.Error(), "\x1b") || !strings.Contains(err.Error(), "***") {
			t.Errorf("Manifest = %v", err)
		}
	}
}

// says answers each request with one status.
type says string

func (s says) RoundTrip(q *http.Request) (*http.Response, error) {
	return &http.Response{Status: string(s), StatusCode: 500, Body: http.NoBody, Request: q}, nil
}
