package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

// The whole of it: read a manifest, run a manager, set the volumes of its pods
// up, and tear them down again. With the fake mounter it needs no privilege.
func Example() {
	dir, err := os.MkdirTemp("", "node-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	mounter := fakemount.New()
	defer mounter.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := setUpAndTearDown(ctx, stop, dir, mounter); err != nil {
		log.Fatal(err)
	}
	// Output: redis-persistent-storage is mounted: 10.244.1.4:/k8s-nfs/redis/data at redis-persistent-storage
}

func setUpAndTearDown(ctx context.Context, stop func(), dir string, mounter mount.Interface) error {
	// README: begin
	objs, err := manifest.Load("../../testdata/redis-nfs.yaml")
	if err != nil {
		return err
	}
	node, err := volumemanager.New(volumemanager.Config{
		RootDir: dir, NodeName: objs.NodeName, Objects: objs, Plugins: plugins.All(),
		Mounter: mounter, // fakemount.New() to try it; leave it out to mount for real
	})
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx) }() // owns dir until ctx ends; mounts stay
	for _, pod := range objs.Pods() {
		volumes, err := node.SetUpPod(ctx, pod) // every volume mounted, or which is not and why
		for _, v := range volumes.Volumes {
			fmt.Printf("%s is %s: %s at %s\n", v.Volume, v.State, v.Source, filepath.Base(v.Path))
		}
		if err := errors.Join(err, node.TearDownPod(ctx, pod.UID)); err != nil {
			return err
		}
	}
	stop()
	return <-done
	// README: end
}
