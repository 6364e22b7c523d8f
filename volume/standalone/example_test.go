package standalone_test

import (
	"context"
	"fmt"
	"os"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/standalone"
)

// A node without a cluster sets up the pod of a manifest.
func ExampleStartNode() {
	root, err := os.MkdirTemp("", "standalone")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(root)
	ctx := context.Background()
	loader := manifest.Loader{NodeName: "node1"}
	set, err := loader.Decode("pod.yaml", []byte("{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {volumes: [{name: scratch, emptyDir: {}}]}}"))
	if err != nil {
		panic(err)
	}
	node, err := standalone.StartNode(ctx, standalone.NodeConfig{RootDir: root, NodeName: "node1", Objects: set, Mounter: fakemount.New()})
	if err != nil {
		panic(err)
	}
	for _, pod := range set.Pods() {
		volumes, err := node.SetUpPod(ctx, pod)
		fmt.Println(pod.Name, len(volumes.Volumes), err)
	}
	fmt.Println(node.Stop())
	// Output:
	// web 1 <nil>
	// <nil>
}
