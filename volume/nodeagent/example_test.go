package nodeagent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/nodeagent"
	"github.com/podvol/podvol/volume/volumemanager"
)

// An agent keeps the pods of a directory mounted, until its context ends; here,
// when the first volume is. The fake mounter keeps books only.
func Example() {
	temp, err := os.MkdirTemp("", "nodeagent")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(temp)
	text := "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {volumes: [{name: scratch, emptyDir: {}}]}}"
	dir := filepath.Join(temp, "manifests")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(text), 0o600)); err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	agent, err := nodeagent.Start(ctx, nodeagent.Config{
		Dir: dir, RootDir: filepath.Join(temp, "root"), NodeName: "node1", Mounter: fakemount.New(),
		Status: func(v volumemanager.VolumeStatus) error {
			fmt.Println(v.Pod, v.Volume, v.State, v.Err)
			cancel()
			return nil
		},
	})
	if err != nil {
		panic(err)
	}
	err = agent.Run(ctx)
	fmt.Println(err, agent.Close())
	// Output:
	// default/web scratch mounted <nil>
	// <nil> <nil>
}
