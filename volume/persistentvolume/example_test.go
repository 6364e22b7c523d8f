package persistentvolume_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/release"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// A claim gets a directory of its own on an NFS server, and that goes with it.
func ExampleController() {
	root, err := os.MkdirTemp("", "podvol")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)
	share := filepath.Join(root, "on-the-server")
	if err := os.Mkdir(share, 0o755); err != nil {
		log.Fatal(err)
	}
	mounter := fakemount.New() // in production: host.New(host.Config{})
	defer mounter.Close()
	mounter.Serve("10.0.0.1:/export", share)

	store := objects.NewStore() // or the caller's informers and client
	releases := &release.Verifier{Objects: store, Plugins: &volume.VolumePluginMgr{}}
	host := &volume.Host{RootDir: root, NodeName: "node1", Mounter: mounter, Releases: releases}
	if err := releases.Plugins.InitPlugins([]volume.VolumePlugin{nfs.New(nfs.Config{})}, host); err != nil {
		log.Fatal(err)
	}
	controller := persistentvolume.NewController(persistentvolume.ControllerConfig{
		Objects: store, Plugins: releases.Plugins, Events: printed{},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- controller.Run(ctx) }()

	class := &storagev1.StorageClass{Provisioner: "kubernetes.io/nfs", Parameters: map[string]string{"server": "10.0.0.1", "share": "/export"}}
	class.Name = "shared"
	claim := &v1.PersistentVolumeClaim{}
	claim.Namespace, claim.Name, claim.UID = "default", "data", "51f0"
	claim.Spec.StorageClassName = &class.Name
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	changed := make(chan struct{}, 1)
	wake := func(volume.ObjectRef) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	claimRef, pvRef := volume.NewObjectRef("PersistentVolumeClaim", "default", "data"), volume.NewObjectRef("PersistentVolume", "", "pvc-51f0")
	defer store.Watch(claimRef, wake)()
	defer store.Watch(pvRef, wake)()
	if _, err := store.Create(ctx, class); err != nil {
		log.Fatal(err)
	}
	if _, err := store.Create(ctx, claim); err != nil {
		log.Fatal(err)
	}
	for {
		stored, err := objects.Get[*v1.PersistentVolumeClaim](ctx, store, claimRef)
		if err != nil {
			log.Fatal(err)
		}
		if stored.Status.Phase == v1.ClaimBound {
			break
		}
		<-changed
	}
	_, err = os.Stat(filepath.Join(share, "pvc-51f0"))
	fmt.Println("its directory exists:", err == nil)

	if err := store.Delete(ctx, claimRef, objects.Preconditions{}); err != nil {
		log.Fatal(err)
	}
	for {
		if _, err := store.Get(ctx, pvRef); errors.Is(err, volume.ErrNotFound) {
			break
		}
		<-changed
	}
	_, err = os.Stat(filepath.Join(share, "pvc-51f0"))
	fmt.Println("its directory is gone:", errors.Is(err, os.ErrNotExist))
	cancel()
	fmt.Println(<-done)
	// Unordered output:
	// Normal ProvisioningSucceeded Successfully provisioned volume pvc-51f0 using kubernetes.io/nfs
	// its directory exists: true
	// its directory is gone: true
	// <nil>
}

// printed shows events.
type printed struct{}

func (printed) Event(_ runtime.Object, eventType, reason, message string) {
	fmt.Println(eventType, reason, message)
}
