package hostpath_test

import (
	"context"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/plugins/hostpath"
)

// An agent that lets storage classes of the provisioner kubernetes.io/host-path
// work out of the box: each claim gets a directory below the agent's own root
// directory. The plugin takes the place of the stock one, which makes nothing.
func Example_provisioning() {
	root, err := os.MkdirTemp("", "podvol")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)
	mounter := fakemount.New() // in production: host.New(host.Config{})
	defer mounter.Close()

	all := plugins.All(hostpath.New(hostpath.Config{
		Provision: hostpath.ProvisionConfig{Bases: []hostpath.Base{hostpath.DefaultBase(root)}},
	}))
	manager := &volume.VolumePluginMgr{}
	if err := manager.InitPlugins(all, &volume.Host{RootDir: root, NodeName: "node1", Mounter: mounter}); err != nil {
		log.Fatal(err)
	}

	// What a controller (package volume/persistentvolume) does with it:
	plugin, err := manager.FindProvisionablePluginByName(hostpath.PluginName)
	if err != nil {
		log.Fatal(err)
	}
	claim := &v1.PersistentVolumeClaim{}
	claim.Namespace, claim.Name, claim.UID = "shop", "orders", "51f0"
	claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	provisioner, err := plugin.NewProvisioner(volume.VolumeOptions{PVName: "pvc-51f0", PVC: claim})
	if err != nil {
		log.Fatal(err)
	}
	pv, err := provisioner.Provision(context.Background(), nil, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.TrimPrefix(pv.Spec.HostPath.Path, root), pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values)
	for _, dir := range []string{filepath.Dir(pv.Spec.HostPath.Path), pv.Spec.HostPath.Path} {
		info, err := os.Stat(dir)
		fmt.Println(info.Mode()&fs.ModePerm, err)
	}
	// Output:
	// /podvol/volumes/pvc-51f0 [node1]
	// -rwx------ <nil>
	// -rwxrwxrwx <nil>
}
