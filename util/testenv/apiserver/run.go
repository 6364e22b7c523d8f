package apiserver

import (
	"os"
	"path/filepath"
	"testing"
)

// assetsVar names the directory of the binaries, as for envtest.
const assetsVar = "KUBEBUILDER_ASSETS"

// Config says how the server is started.
type Config struct {
	// Flags are added to those of kube-apiserver, after the package's own: of two
	// for the same thing the last one counts. "--authorization-mode=AlwaysAllow"
	// turns authorization off.
	Flags []string
}

// Run runs f with a server of its own, as the sub-test "apiserver", if
// KUBEBUILDER_ASSETS is set, and else says that it was not run. The server is
// ready when f begins. It ends with the sub-test, also when the process is
// killed; what it has said is shown if the sub-test fails.
func Run(t *testing.T, config Config, f func(t *testing.T, s *Server)) {
	t.Helper()
	assets := os.Getenv(assetsVar)
	if assets == "" {
		t.Logf("not run: set %s to a directory with etcd and kube-apiserver to run this on a real API server", assetsVar)
		return
	}
	t.Run("apiserver", func(t *testing.T) { f(t, launch(t, assets, config)) })
}

// launch returns a server that is ready.
func launch(t *testing.T, assets string, config Config) *Server {
	t.Helper()
	dir := t.TempDir()
	ca, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	port, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(port.release)
	s := &Server{ca: ca, port: port.number, etcd: etcd(assets, dir)}
	if s.api, err = kubeAPIServer(assets, dir, ca, port.number, config.Flags); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.end(t) })
	if err := s.etcd.start(); err != nil {
		t.Fatal(err)
	}
	if err := s.etcd.await(t.Context(), accepts(filepath.Join(dir, etcdSocket))); err != nil {
		t.Fatal(err)
	}
	s.Start(t)
	return s
}
