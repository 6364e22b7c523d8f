package embedded_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/plugins/hostpath"
)

// An agent makes the directory that a pod's claim asks for, and finds it again
// after a restart.
func Example() {
	root, err := os.MkdirTemp("", "podvol")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)
	if err := os.Mkdir(filepath.Join(root, "volumes"), 0o755); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		if err := agent(context.Background(), root); err != nil {
			log.Fatal(err)
		}
	}
	made, err := filepath.Glob(filepath.Join(root, "volumes", "pvc-*"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("directories:", len(made))
	// Output:
	// Pod web is on node edge1, its claims are bound
	// Pod web is on node edge1, its claims are bound
	// directories: 1
}

func agent(ctx context.Context, root string) error {
	mounter := fakemount.New() // in production: host.New(host.Config{})
	defer mounter.Close()
	directories := hostpath.New(hostpath.Config{Provision: hostpath.ProvisionConfig{Bases: []hostpath.Base{{Path: filepath.Join(root, "volumes")}}}})
	cluster, err := embedded.Open(ctx, embedded.Config{
		Dir: filepath.Join(root, "podvol", "cluster"), NodeName: "edge1",
		Plugins: plugins.All(directories), Host: volume.Host{RootDir: root, Mounter: mounter},
	})
	if err != nil {
		return err
	}
	defer cluster.Close()

	set, err := manifest.Loader{NodeName: "edge1"}.Decode("web.yaml", []byte(strings.TrimSpace(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local-dirs}
provisioner: kubernetes.io/host-path
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: local-dirs, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: web, image: nginx, volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`)))
	if err != nil {
		return err
	}
	declared, err := set.Objects(ctx)
	if err != nil {
		return err
	}
	if err := cluster.Apply(ctx, declared...); err != nil {
		fmt.Println("refused:", err) // the rest is applied
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- cluster.Run(running) }()
	if err := cluster.Bind(ctx, set.Pods()...); err != nil {
		fmt.Println(err)
	} else {
		fmt.Println("Pod web is on node edge1, its claims are bound")
	}
	// Here a volumemanager with cluster.Objects() mounts the pod's volumes, and
	// cluster.PodsComplete() lets unused storage be reclaimed.
	stop()
	return <-ended
}
