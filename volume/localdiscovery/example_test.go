package localdiscovery_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/localdiscovery"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/release"
	"github.com/podvol/podvol/volume/plugins/local"
)

// Every disk that is mounted below a directory is offered, by a node that has a
// fake mounter here, and those that claims have left are emptied and offered anew.
func Example() {
	dir, err := os.MkdirTemp("", "disks")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	mounter := fakemount.New() // in earnest host.New(host.Config{})
	defer mounter.Close()
	for _, disk := range []string{"ssd0", "ssd1"} {
		target := filepath.Join(dir, disk)
		if err := os.Mkdir(target, 0o755); err != nil {
			log.Fatal(err)
		}
		if err := mount.Mount(context.Background(), mounter, mount.Request{Source: "/dev/" + disk, Target: target, FSType: "ext4"}); err != nil {
			log.Fatal(err)
		}
	}

	store := objects.NewStore() // in earnest the API, or embedded.Cluster
	d := &localdiscovery.Discoverer{
		Objects: store, Mounts: mounter.Table(), NodeName: "node1",
		Classes: []localdiscovery.Class{{
			StorageClass: "local-ssd", Dir: dir, ReclaimPolicy: v1.PersistentVolumeReclaimDelete,
		}},
	}
	found, err := d.Discover(context.Background()) // or Run, to follow what happens
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range found {
		fmt.Println(filepath.Base(f.Path), f.State, f.Mode, f.ID)
	}

	// What cleans them is the plugin, for the controller of claims.
	releases := &release.Verifier{Objects: store}
	releases.Plugins, err = volume.NewVolumePluginMgr(
		[]volume.VolumePlugin{local.New(local.Config{Clean: local.CleanConfig{Action: local.CleanDelete, Below: []string{dir}}})},
		&volume.Host{RootDir: dir, NodeName: "node1", Mounter: mounter, Releases: releases})
	if err != nil {
		log.Fatal(err)
	}
	_ = persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: store, Plugins: releases.Plugins}) // and Run
	// Output:
	// ssd0 Offered Filesystem source:ext4:/dev/ssd0
	// ssd1 Offered Filesystem source:ext4:/dev/ssd1
}
