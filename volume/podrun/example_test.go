package podrun_test

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/podrun"
	"github.com/podvol/podvol/volume/standalone"
)

// What a pod asks for and cannot get is known before anything is touched.
func ExamplePrepare() {
	loader := manifest.Loader{NodeName: "node1"}
	set, err := loader.Decode("pod.yaml", []byte(`{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [
		{name: c, image: i, command: [id], securityContext: {readOnlyRootFilesystem: true}}]}}`))
	if err != nil {
		panic(err)
	}
	pod := set.Pods()[0]
	program, err := podrun.Prepare(context.Background(), podrun.Options{
		Pod: pod, Container: &pod.Spec.Containers[0], Objects: set, NodeName: "node1",
	})
	if err != nil {
		panic(err)
	}
	fmt.Println("not done:", program.NotHonoured)
	// Output:
	// not done: [readOnlyRootFilesystem]
}

// A program runs with a pod's volumes, while they are set up. Its main function calls
// sandbox.Main first.
func Example() {
	run := func(ctx context.Context, pod *v1.Pod, program *podrun.Program, node *standalone.Node) (code int, err error) {
		signals := podrun.TakeSignals()
		defer signals.Stop()
		if _, err := node.SetUpPod(ctx, pod); err != nil {
			return podrun.ExitFailed, err
		}
		defer func() { _ = node.TearDownPod(context.WithoutCancel(ctx), pod.UID) }()
		var config sandbox.Config
		if config, err = program.Sandbox(ctx, node.Manager); err != nil {
			return podrun.ExitFailed, err
		}
		return signals.Run(ctx, config)
	}
	_ = run
}
