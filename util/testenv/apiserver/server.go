package apiserver

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// Server is a running API server. Its methods must not be called at the same
// time.
type Server struct {
	ca        *authority
	port      int
	etcd, api *process
}

// URL is where the server listens.
func (s *Server) URL() string { return fmt.Sprintf("https://127.0.0.1:%d", s.port) }

// Kill ends the API server at once, as a crash does. Its objects stay.
func (s *Server) Kill(t *testing.T) {
	t.Helper()
	s.api.kill()
}

// Start starts the API server again, where it was, and returns once it is ready.
func (s *Server) Start(t *testing.T) {
	t.Helper()
	if err := s.api.start(); err != nil {
		t.Fatal(err)
	}
	ready, err := s.ready()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.api.await(t.Context(), ready); err != nil {
		t.Fatal(err)
	}
}

// end kills everything, and shows what was said if the test has failed.
func (s *Server) end(t *testing.T) {
	for _, p := range []*process{s.api, s.etcd} {
		p.kill()
		if t.Failed() {
			t.Logf("the last lines of %s:\n%s", p.name, p.tail())
		}
	}
}

// Admin is the kubeconfig of a user who may do everything.
func (s *Server) Admin(t *testing.T) []byte {
	t.Helper()
	return s.Kubeconfig(t, "admin", "system:masters")
}

// Kubeconfig is that of a user who is identified by a certificate, and belongs to
// groups. A node is the user "system:node:<its name>" in "system:nodes".
func (s *Server) Kubeconfig(t *testing.T, user string, groups ...string) []byte {
	t.Helper()
	pair, err := s.ca.client(user, groups)
	if err != nil {
		t.Fatal(err)
	}
	type named = map[string]any
	config, err := json.Marshal(named{ // of which YAML is a superset
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []named{{"name": "test", "cluster": named{"server": s.URL(), "certificate-authority-data": s.ca.certificate}}},
		"users":    []named{{"name": user, "user": named{"client-certificate-data": pair.certificate, "client-key-data": pair.key}}},
		"contexts": []named{{"name": "test", "context": named{"cluster": "test", "user": user}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// ready returns what asks the server whether it is: its own initial objects, such
// as roles, are there then.
func (s *Server) ready() (func(context.Context) error, error) {
	pair, err := s.ca.client("ready", []string{"system:masters"})
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.certificate, pair.key)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: s.ca.pool(), Certificates: []tls.Certificate{certificate}}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/readyz", nil)
		if err != nil {
			return err
		}
		transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
		response, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		said, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(said)))
		}
		return err
	}, nil
}

// accepts returns what tries to connect to a socket.
func accepts(socket string) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", socket)
		if err == nil {
			err = c.Close()
		}
		return err
	}
}
