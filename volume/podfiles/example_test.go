//go:build unix

package podfiles_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/podvol/podvol/volume/atomicdir"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/podfiles"
)

const manifests = `
apiVersion: v1
kind: ConfigMap
metadata: {name: app, namespace: shop}
data: {app.conf: "colour=blue"}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  volumes: [{name: config, configMap: {name: app, defaultMode: 0440}}]
  containers: [{name: c, image: i, volumeMounts: [{name: config, mountPath: /etc/app}]}]
`

// The files of a volume, from a manifest.
func ExampleRender() {
	set, err := manifest.Loader{NodeName: "node1"}.Decode("pod.yaml", []byte(manifests))
	if err != nil {
		panic(err)
	}
	files, err := podfiles.Render(context.Background(), set.Pods()[0], "config", podfiles.Sources{Objects: set}, podfiles.Options{})
	if err != nil {
		panic(err)
	}
	for _, path := range files.Paths() {
		fmt.Printf("%s %v %s\n", path, files.Files[path].Mode, files.Files[path].Data)
	}
	// Output:
	// app.conf -r--r----- colour=blue
}

// A directory that follows the objects: its files change all at once.
func ExampleFollow() {
	set, err := manifest.Loader{NodeName: "node1"}.Decode("pod.yaml", []byte(manifests))
	if err != nil {
		panic(err)
	}
	dir, err := os.MkdirTemp("", "podfiles")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx, stop := context.WithCancel(context.Background())
	var publisher atomicdir.Publisher
	err = podfiles.Follow(ctx, set.Pods()[0], podfiles.WatchSources{Objects: set, Options: podfiles.Options{NoOwners: true}}, func(volumeName string, s *podfiles.Set, err error) {
		defer stop() // an agent goes on until the pod goes
		if err != nil {
			fmt.Println(err)
			return
		}
		target := filepath.Join(dir, volumeName)
		if err := os.MkdirAll(target, 0o755); err != nil {
			fmt.Println(err)
			return
		}
		if _, err := publisher.Publish(ctx, target, s.Files); err != nil {
			fmt.Println(err)
			return
		}
		text, err := os.ReadFile(filepath.Join(target, "app.conf"))
		fmt.Println(string(text), err)
	})
	fmt.Println(err)
	// Output:
	// colour=blue <nil>
	// <nil>
}
