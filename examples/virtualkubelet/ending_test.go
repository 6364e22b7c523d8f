package main

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/podvol/podvol/examples/virtualkubelet/processes"
)

// The end of the node cuts off a request for its object: virtual-kubelet panicked.
func TestTheEndCutsOffARequestForTheNode(t *testing.T) {
	t.Parallel()
	w := newFakeWorld(t)
	controller, err := newNodeController(w.config, newNodeObject(t.Context(), w.config, processes.Held{}, nil))
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	w.api.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		end()
		return true, nil, &url.Error{Op: "Get", URL: "/api/v1/nodes/node1", Err: ctx.Err()}
	})
	if err := controller.Run(ctx); err == nil || !strings.Contains(err.Error(), "cut off") {
		t.Errorf("the controller ended with %v", err)
	}
}
