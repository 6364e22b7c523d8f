package apiserver

import (
	"testing"

	"github.com/podvol/podvol/util/testenv/kubecluster"
)

// Server is a running API server. Its methods must not be called at the same
// time.
type Server struct{ plane *kubecluster.ControlPlane }

// URL is where the server listens.
func (s *Server) URL() string { return s.plane.URL() }

// Kill ends the API server at once, as a crash does. Its objects stay.
func (s *Server) Kill(t *testing.T) {
	t.Helper()
	s.plane.KillAPIServer()
}

// Start starts the API server again, where it was, and returns once it is ready.
func (s *Server) Start(t *testing.T) {
	t.Helper()
	if err := s.plane.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// end kills everything, and shows what was said if the test has failed.
func (s *Server) end(t *testing.T) {
	s.plane.Kill()
	if !t.Failed() {
		return
	}
	for _, p := range s.plane.Processes() {
		t.Logf("the last lines of %s:\n%s", p.Name, p.Tail())
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
	config, err := s.plane.Kubeconfig(user, groups...)
	if err != nil {
		t.Fatal(err)
	}
	return config
}
