package nodehttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/podvol/podvol/examples/nodehttp"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/standalone"
)

// The address is taken before the node is started, so that one in use is an error
// before anything is done.
func Example() {
	ctx := context.Background()
	addr, err := nodehttp.ParseAddress("0") // any port of the loopback interface
	if err != nil {
		panic(err)
	}
	server, err := nodehttp.Listen(ctx, addr)
	if err != nil {
		panic(err)
	}
	defer server.Close()
	root, err := os.MkdirTemp("", "nodehttp")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(root)
	node, err := standalone.StartNode(ctx, standalone.NodeConfig{RootDir: root, NodeName: "node1", Objects: objects.NewStore(), Mounter: fakemount.New()})
	if err != nil {
		panic(err)
	}
	defer func() { _ = node.Stop() }()
	metrics := nodehttp.NewMetrics(node.Manager, node.Explain())
	defer node.Subscribe(metrics.Observe)()
	server.Serve(metrics, node.Explain)

	response, err := http.Get(server.URL() + "/healthz")
	if err != nil {
		panic(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	fmt.Printf("%s%v\n", text, err)
	// Output:
	// ok
	// <nil>
}
