package volumemanager_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

// From a manifest to what starts its container: each of its volumes as an
// argument of docker run. containermounts.OCIMounts and CRIMounts do the same for
// other runtimes.
func ExampleManager_ContainerMounts() {
	dir, err := os.MkdirTemp("", "node-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	mounter := fakemount.New() // leave it out to mount for real
	defer mounter.Close()
	objs, err := manifest.Load("../../testdata/redis-nfs.yaml")
	if err != nil {
		log.Fatal(err)
	}
	node, err := volumemanager.New(volumemanager.Config{RootDir: dir, NodeName: objs.NodeName, Objects: objs, Plugins: plugins.All(), Mounter: mounter})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx) }()
	for _, pod := range objs.Pods() {
		if _, err := node.SetUpPod(ctx, pod); err != nil {
			log.Fatal(err)
		}
		mounts, _, err := node.ContainerMounts(ctx, pod.UID, pod.Spec.Containers[0].Name, containermounts.Options{})
		if err != nil {
			log.Fatal(err)
		}
		args, err := containermounts.DockerVolumeArgs(mounts)
		if err != nil {
			log.Fatal(err)
		}
		known := strings.NewReplacer(dir, "DIR", string(pod.UID), "UID") // for this example's output
		fmt.Println(known.Replace("docker run " + strings.Join(args, " ")))
		if err := node.TearDownPod(ctx, pod.UID); err != nil { // once the container is gone
			log.Fatal(err)
		}
	}
	stop()
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	// Output: docker run -v DIR/pods/UID/volumes/kubernetes.io~nfs/redis-persistent-storage:/data:rprivate
}
