package podrun_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/podrun"
	"github.com/podvol/podvol/volume/podrun/runroot"
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

// A program runs with a pod's volumes, at a root directory of its own. Its main function
// calls sandbox.Main first.
func Example() {
	run := func(ctx context.Context, base string, set *manifest.Set, program *podrun.Program) (code int, err error) {
		root, err := runroot.Runs{Base: base}.New("a-pod")
		if err != nil {
			return podrun.ExitFailed, err
		}
		defer root.Close()
		r := podrun.Run{
			Program: program, Root: root, Manifests: set, Name: "my agent", Timeout: time.Minute,
			Node:   standalone.NodeConfig{NodeName: "node1"},
			Claims: standalone.ClaimsConfig{RootDir: base, Manager: "my agent"},
			Stdin:  os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		}
		return r.Do(ctx)
	}
	_ = run
}
