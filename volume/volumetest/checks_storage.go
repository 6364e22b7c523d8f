package volumetest

import (
	"os"
	"path/filepath"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
)

// storageChecks are about the life of storage itself: made, grown, emptied,
// deleted.
func storageChecks() []check {
	return []check{
		{
			name:   "storage/expand",
			proves: "ExpandVolumeDevice grows the storage to at least the new size and returns its actual size, and repeating it is harmless.",
			needs:  capable("ExpandableVolumePlugin", volume.AsExpandable),
			each:   checkExpand,
		},
		{
			name:   "storage/node-expand",
			proves: "NodeExpand of a volume that is set up grows its file system, and repeating it is harmless.",
			needs:  capable("NodeExpandableVolumePlugin", volume.AsNodeExpandable),
			each:   checkNodeExpand,
		},
		{
			name:   "storage/recycle",
			proves: "Recycle removes everything below the volume and never a step outside it, and may be repeated.",
			needs:  capable("RecyclableVolumePlugin", volume.AsRecyclable),
			each:   checkRecycle,
		},
		{
			name:   "storage/provision",
			proves: "Provision makes storage that the plugin supports, under the name that was asked for, and repeating it returns the same; deleting it, also again, succeeds.",
			needs:  capable("ProvisionableVolumePlugin", volume.AsProvisionable),
			once:   checkProvision,
		},
		{
			name:     "storage/provision-refused",
			proves:   "NewProvisioner refuses parameters that it does not know.",
			fakeOnly: true,
			needs:    capable("ProvisionableVolumePlugin", volume.AsProvisionable),
			once:     checkUnknownParameter,
		},
	}
}

const oldSize, newSize = "1Gi", "2Gi"

func checkExpand(k *kit, c Case) {
	n := k.node(c)
	spec := c.Spec(n)
	if spec.PersistentVolume == nil {
		return // only these grow
	}
	p, _ := volume.AsExpandable(n.plugin)
	want := resource.MustParse(newSize)
	for range 2 {
		got, err := p.ExpandVolumeDevice(k.Context(), spec, want, resource.MustParse(oldSize))
		if err != nil {
			k.Fatalf("ExpandVolumeDevice: %v", err)
		}
		if got.Cmp(want) < 0 {
			k.Errorf("the storage has %v after it was grown to %v", &got, &want)
		}
	}
}

func checkNodeExpand(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	if v.spec.PersistentVolume == nil {
		return
	}
	p, _ := volume.AsNodeExpandable(n.plugin)
	v.mustSetUp()
	options := volume.NodeResizeOptions{VolumeSpec: v.spec, DeviceMountPath: v.GetPath(),
		NewSize: resource.MustParse(newSize), OldSize: resource.MustParse(oldSize)}
	device, err := v.staged()
	if err != nil {
		k.Fatal(err)
	}
	if device != nil {
		options.DeviceMountPath = device.path
	}
	for range 2 {
		if _, err := p.NodeExpand(k.Context(), options); err != nil {
			k.Fatalf("NodeExpand: %v", err)
		}
		v.assertShown()
	}
	v.mustTearDown()
	n.AssertTornDown(k)
}

func checkRecycle(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	if v.spec.PersistentVolume == nil || v.GetAttributes().ReadOnly {
		return
	}
	outside := n.outside(k)
	before := snapshot(k, outside)
	v.mustSetUp()
	writeFiles(k, v.GetPath(), map[string]string{".hidden": "data", "deep/er/file": "data"})
	if err := os.Symlink(outside, filepath.Join(v.GetPath(), "link")); err != nil {
		k.Fatal(err)
	}
	v.mustTearDown()
	p, _ := volume.AsRecyclable(n.plugin)
	for range 2 {
		if err := p.Recycle(k.Context(), v.spec.Name(), v.spec, func(string, string) {}); err != nil {
			k.Fatalf("Recycle: %v", err)
		}
	}
	n.assertUntouchedOutside(k, outside, before)
	v.mustSetUp()
	entries, err := os.ReadDir(v.GetPath())
	if err != nil || len(entries) > 0 {
		k.Errorf("after Recycle the volume contains %v, %v", entries, err)
	}
}

// claimOptions are a claim's wishes, with the suite's parameters.
func (k *kit) claimOptions() volume.VolumeOptions {
	filesystem := v1.PersistentVolumeFilesystem
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "claim", UID: "uid-of-claim"}}
	claim.Spec = v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, VolumeMode: &filesystem,
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(oldSize)}},
	}
	parameters := map[string]string{}
	for name, value := range k.runner.suite.Parameters {
		parameters[name] = value
	}
	return volume.VolumeOptions{PVName: "pvc-uid-of-claim", PVC: claim, Parameters: parameters,
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete}
}

func checkProvision(k *kit) {
	n := k.node(Case{})
	first := n.provision(k)
	if first.Name != k.claimOptions().PVName {
		k.Errorf("the PersistentVolume is named %q, want %q", first.Name, k.claimOptions().PVName)
	}
	if got, want := first.Spec.Capacity[v1.ResourceStorage], resource.MustParse(oldSize); got.Cmp(want) < 0 {
		k.Errorf("the PersistentVolume has a capacity of %v, want at least %v", &got, &want)
	}
	if diff := cmp.Diff(first, n.restart().provision(k)); diff != "" {
		k.Errorf("provisioned again, the PersistentVolume is another (-first +second):\n%s", diff)
	}
	spec := volume.NewSpecFromPersistentVolume(first, false)
	if !n.plugin.CanSupport(spec) {
		k.Errorf("the plugin does not support what it has provisioned")
	}
	p, ok := volume.AsDeletable(n.plugin)
	if !ok {
		return
	}
	d, err := p.NewDeleter(spec)
	if err != nil {
		k.Fatalf("NewDeleter: %v", err)
	}
	for range 2 {
		if err := d.Delete(k.Context()); err != nil {
			k.Fatalf("Delete: %v", err)
		}
	}
}

func (n *Node) provision(k *kit) *v1.PersistentVolume {
	k.Helper()
	p, _ := volume.AsProvisionable(n.plugin)
	options := k.claimOptions()
	claim := options.PVC.DeepCopy()
	provisioner, err := p.NewProvisioner(options)
	if err != nil {
		k.Fatalf("NewProvisioner: %v", err)
	}
	pv, err := provisioner.Provision(k.Context(), nil, nil)
	if err != nil || pv == nil {
		k.Fatalf("Provision = %v, %v", pv, err)
	}
	if diff := cmp.Diff(claim, options.PVC); diff != "" {
		k.Errorf("the claim was changed:\n%s", diff)
	}
	return pv
}

func checkUnknownParameter(k *kit) {
	p, _ := volume.AsProvisionable(k.node(Case{}).plugin)
	options := k.claimOptions()
	options.Parameters["no-such-parameter"] = "value"
	if _, err := p.NewProvisioner(options); err == nil {
		k.Errorf("NewProvisioner accepts the parameter no-such-parameter")
	}
}
