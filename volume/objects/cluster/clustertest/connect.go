package clustertest

import (
	"net/http"
	"sync"
	"testing"

	"k8s.io/client-go/informers"

	"github.com/podvol/podvol/volume/objects/cluster"
)

// Process is one process's view of a server.
type Process struct {
	*cluster.Client
	server *Server
}

// Hold is [Server.Hold], of all processes.
func (p *Process) Hold(kind string) (release func()) { return p.server.Hold(kind) }

// Connect returns a client of a server that is reached by transport. Its
// informers of the shared kinds have synced. stop ends it with its informers. The
// end of the test does so, too.
func Connect(t testing.TB, server *Server, transport http.RoundTripper, shared ...string) (p *Process, stop func()) {
	t.Helper()
	set := Clientset(t, "http://api", transport)
	factory := informers.NewSharedInformerFactory(set, 0)
	c, err := cluster.FromInformers(factory, set, cluster.Config{Shared: shared})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	factory.Start(ended)
	stop = sync.OnceFunc(func() {
		c.Close()
		close(ended)
		factory.Shutdown()
	})
	t.Cleanup(stop)
	if err := c.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &Process{c, server}, stop
}
