package volumetest

import (
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
)

// storageChecks are about storage that grows.
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
	}
}

const oldSize, newSize = "1Gi", "2Gi"

func checkExpand(k *kit, c Case) {
	n := k.node(c)
	spec := c.Spec(n)
	if spec.PersistentVolume == nil {
		return // only these grow
	}
	p, _ := volume.AsExpandable(n.sim.Plugin)
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
	if v.Spec.PersistentVolume == nil {
		return
	}
	p, _ := volume.AsNodeExpandable(n.sim.Plugin)
	v.MustSetUp()
	options := volume.NodeResizeOptions{VolumeSpec: v.Spec, DeviceMountPath: v.GetPath(),
		NewSize: resource.MustParse(newSize), OldSize: resource.MustParse(oldSize)}
	device, err := v.Device()
	if err != nil {
		k.Fatal(err)
	}
	if device != nil {
		options.DeviceMountPath = device.Path
	}
	for range 2 {
		if _, err := p.NodeExpand(k.Context(), options); err != nil {
			k.Fatalf("NodeExpand: %v", err)
		}
		v.assertShown()
	}
	v.MustTearDown()
	n.AssertTornDown(k)
}
