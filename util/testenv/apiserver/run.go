package apiserver

import (
	"os"
	"testing"

	"github.com/podvol/podvol/util/testenv/kubecluster"
)

// assetsVar names the directory of the binaries, as for envtest.
const assetsVar = "KUBEBUILDER_ASSETS"

// Config says how the server is started.
type Config struct {
	// Flags are added to those of kube-apiserver, after the package's own: of two
	// for the same thing the last one counts. "--authorization-mode=AlwaysAllow"
	// turns authorization off.
	Flags []string
	// Controllers says whether kube-controller-manager and kube-scheduler run, too.
	// ManagerFlags are added to those of the former, as Flags are.
	Controllers  bool
	ManagerFlags []string
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
	port, err := kubecluster.ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(port.Release)
	plane, err := kubecluster.New(kubecluster.Config{Assets: assets, Dir: t.TempDir(), Port: port.Number, Flags: config.Flags,
		Controllers: config.Controllers, ManagerFlags: config.ManagerFlags})
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{plane: plane}
	t.Cleanup(func() { s.end(t) })
	if err := plane.Start(t.Context()); err != nil {
		t.Fatalf("%v (%s must name a directory with the programs)", err, assetsVar)
	}
	return s
}
