package volumemanager_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

// The whole of it: read a manifest, run a manager, set a pod's volumes up, and
// tear them down again. With the fake mounter it needs no privilege; leave
// Mounter out to mount for real.
func Example() {
	dir, err := os.MkdirTemp("", "node-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	// README: begin
	objs, err := manifest.Load("../../testdata/redis-nfs.yaml")
	if err != nil {
		log.Fatal(err)
	}
	node, err := volumemanager.New(volumemanager.Config{
		RootDir:  dir,
		NodeName: objs.NodeName,
		Objects:  objs,
		Plugins:  plugins.All(),
		Mounter:  mount.NewFakeMounter(), // leave out to mount for real
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- node.Run(ctx) }()

	for _, pod := range objs.Pods() {
		volumes, err := node.SetUpPod(ctx, pod) // every volume mounted, or which is not and why
		if err != nil {
			log.Print(err)
		}
		for _, v := range volumes.Volumes {
			fmt.Println(v.Volume, v.State, v.Source, "at", filepath.Base(v.Path))
		}
		if err := node.TearDownPod(ctx, pod.UID); err != nil {
			log.Print(err)
		}
	}
	stop()
	if err := <-done; err != nil {
		log.Print(err)
	}
	// README: end

	// Output: redis-persistent-storage mounted 10.244.1.4:/k8s-nfs/redis/data at redis-persistent-storage
}
