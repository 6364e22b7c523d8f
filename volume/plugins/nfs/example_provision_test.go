package nfs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// A claim gets a directory of a share of its own.
func Example_provisioning() {
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
	mounter.Serve("10.0.0.1:/exports", share)

	plugins := &volume.VolumePluginMgr{}
	host := &volume.Host{RootDir: root, NodeName: "node1", Mounter: mounter}
	if err := plugins.InitPlugins([]volume.VolumePlugin{nfs.New(nfs.Config{})}, host); err != nil {
		log.Fatal(err)
	}
	plugin, err := plugins.FindProvisionablePluginByName(nfs.PluginName)
	if err != nil {
		log.Fatal(err)
	}
	claim := &v1.PersistentVolumeClaim{}
	claim.Namespace, claim.Name, claim.UID = "shop", "orders", "51f0"
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	provision := func(subDir string) (*v1.PersistentVolume, error) {
		provisioner, err := plugin.NewProvisioner(volume.VolumeOptions{
			PVName: "pvc-51f0", PVC: claim, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
			Parameters: map[string]string{"server": "10.0.0.1", "share": "/exports", "subDir": subDir},
		})
		if err != nil {
			return nil, err
		}
		return provisioner.Provision(context.Background(), nil, nil)
	}
	pv, err := provision("${pvc.metadata.namespace}/${pvc.metadata.name}")
	if err != nil {
		log.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(share, "shop", "orders"))
	fmt.Println(pv.Name, pv.Spec.NFS.Path, info.Mode(), err)

	_, err = provision("../${pvc.metadata.name}")
	invalid, _ := errors.AsType[*volume.InvalidSpecError](err)
	fmt.Println(invalid)
	// Output:
	// pvc-51f0 /exports/shop/orders drwxr-xr-x <nil>
	// invalid parameters.subDir: "../${pvc.metadata.name}" is refused: it makes "../orders", and the path must not have the element ".."
}
