package nfs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/release"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/reclaim"
)

// A released volume is emptied by this process, which knows from its objects
// that nobody uses it any more. Without an Action it only says what it would
// delete.
func ExampleRecycleConfig() {
	ctx := context.Background()
	root, err := os.MkdirTemp("", "podvol")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)
	data := filepath.Join(root, "on-the-server")
	if err := errors.Join(os.Mkdir(data, 0o755), os.WriteFile(filepath.Join(data, "file"), nil, 0o644)); err != nil {
		log.Fatal(err)
	}
	mounter := fakemount.New() // in production: host.New(host.Config{})
	defer mounter.Close()
	mounter.Serve("10.0.0.1:/exports/pv1", data)

	pv := &v1.PersistentVolume{}
	pv.Name, pv.UID = "pv1", "8a7d"
	pv.Spec.NFS = &v1.NFSVolumeSource{Server: "10.0.0.1", Path: "/exports/pv1"}
	pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRecycle
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: "data", UID: "51f0"}
	pv.Status.Phase = v1.VolumeReleased
	store := objects.NewStore()
	if _, err := store.Create(ctx, pv); err != nil {
		log.Fatal(err)
	}

	recycle := func(action nfs.RecycleAction) error {
		plugins := &volume.VolumePluginMgr{}
		host := &volume.Host{
			RootDir: root, NodeName: "node1", Mounter: mounter,
			Releases: &release.Verifier{Objects: store, Plugins: plugins},
		}
		config := nfs.Config{Recycle: nfs.RecycleConfig{Embedded: nfs.EmbeddedRecycling{Enabled: true, Action: action}}}
		if err := plugins.InitPlugins([]volume.VolumePlugin{nfs.New(config)}, host); err != nil {
			return err
		}
		spec := volume.NewSpecFromPersistentVolume(pv, false)
		recycler, err := plugins.FindRecyclablePluginBySpec(spec)
		if err != nil {
			return err
		}
		return recycler.Recycle(ctx, pv.Name, spec, func(eventType, message string) { fmt.Println(eventType, message) })
	}
	fmt.Println(errors.Is(recycle(nfs.RecycleDryRun), reclaim.ErrDryRun))
	fmt.Println(recycle(nfs.RecycleDelete))
	// Output:
	// Warning dry run: nothing was deleted: 10.0.0.1:/exports/pv1 has 1 entry of 0 bytes ("file"); to empty it for its next claim, set the recycler's action to Delete or Archive
	// true
	// Normal deleting the contents of 10.0.0.1:/exports/pv1, in no more than 5m0s
	// Normal 10.0.0.1:/exports/pv1 is empty: 1 entry deleted
	// <nil>
}
