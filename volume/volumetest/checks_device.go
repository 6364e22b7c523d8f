package volumetest

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/volumetest/internal/sim"
)

// deviceChecks are about volumes that are attached and mounted once for a
// node, and about block volumes. Each asks the plugin whether it does so for
// the case's spec.
func deviceChecks() []check {
	return []check{
		{
			name:   "device/mount",
			proves: "MountDevice and UnmountDevice are idempotent: mounted already and not mounted at all are success, and UnmountDevice leaves neither mount nor mount point.",
			needs:  capable("DeviceMountableVolumePlugin", volume.AsDeviceMountable),
			each:   checkDeviceMount,
		},
		{
			name:   "device/path",
			proves: "GetDeviceMountPath does no I/O, is the same in every process, and leads to a place of the plugin's own.",
			needs:  capable("DeviceMountableVolumePlugin", volume.AsDeviceMountable),
			each:   checkDevicePath,
		},
		{
			name:   "device/refs",
			proves: "GetDeviceMountRefs finds the pods' mounts of a device from the mount table, and none when they are gone.",
			needs:  capable("DeviceMountableVolumePlugin", volume.AsDeviceMountable),
			each:   checkDeviceRefs,
		},
		{
			name:   "attach/idempotent",
			proves: "Attach and Detach are idempotent: attached already is success with the same path, detached already is success.",
			needs:  capable("AttachableVolumePlugin", volume.AsAttachable),
			each:   checkAttach,
		},
		{
			name:   "block/idempotent",
			proves: "The calls of a block volume are idempotent, give the same paths again, and leave nothing once they are undone.",
			block:  true,
			needs:  capable("BlockVolumePlugin", volume.AsBlock),
			each:   checkBlock,
		},
	}
}

// device is a case's volume as a device of the node.
type device struct {
	*podVolume
	*sim.Device
	// attached is the device's path on the node, if it has to be attached.
	attached string
}

// device attaches the case's volume; ok is false where the plugin needs no
// device for it.
func (n *Node) device(k *kit, podName string) (d device, ok bool) {
	k.Helper()
	v := n.volume(podName)
	mounted, err := v.Device()
	if err != nil {
		k.Fatal(err)
	}
	if mounted == nil {
		return d, false
	}
	attached, err := n.sim.Attach(k.Context(), v.Spec, v.Pod)
	if err != nil {
		k.Fatal(err)
	}
	return device{v, mounted, attached}, true
}

func (d device) mustMount(k *kit) {
	k.Helper()
	if err := d.Mount.MountDevice(k.Context(), d.Spec, d.attached, d.Path, d.DeviceArgs()); err != nil {
		k.Fatalf("MountDevice: %v", err)
	}
}

func (d device) mustUnmount(k *kit, n *Node) {
	k.Helper()
	p, _ := volume.AsDeviceMountable(n.sim.Plugin)
	u, err := p.NewDeviceUnmounter()
	if err != nil {
		k.Fatalf("NewDeviceUnmounter: %v", err)
	}
	if err := u.UnmountDevice(k.Context(), d.Path); err != nil {
		k.Fatalf("UnmountDevice: %v", err)
	}
}

func checkDeviceMount(k *kit, c Case) {
	n := k.node(c)
	d, ok := n.device(k, "a")
	if !ok {
		return
	}
	d.mustUnmount(k, n)
	d.mustMount(k)
	mounts := len(n.Mounts(k))
	d.mustMount(k)
	if got := len(n.Mounts(k)); got != mounts {
		k.Errorf("%d mounts after another MountDevice, %d before", got, mounts)
	}
	again := n.restart()
	for range 2 {
		d.mustUnmount(k, again)
	}
	for _, left := range n.Leftovers(k) {
		if strings.HasPrefix(n.RootDir+"/"+left, d.Path) {
			k.Errorf("left behind: %s", left)
		}
	}
	n.AssertNothingMounted(k)
}

func checkDevicePath(k *kit, c Case) {
	n := k.node(c)
	p, _ := volume.AsDeviceMountable(n.sim.Plugin)
	m, err := p.NewDeviceMounter()
	if err != nil {
		k.Fatalf("NewDeviceMounter: %v", err)
	}
	path, err := m.GetDeviceMountPath(c.Spec(n))
	if err != nil {
		k.Fatalf("GetDeviceMountPath: %v", err)
	}
	if !strings.HasPrefix(path, n.RootDir+"/plugins/") {
		k.Errorf("GetDeviceMountPath = %s, which is not below %s/plugins", path, n.RootDir)
	}
	assertUntouched(k, n.Host)
	again, _ := volume.AsDeviceMountable(n.restart().sim.Plugin)
	if m, err = again.NewDeviceMounter(); err != nil {
		k.Fatalf("NewDeviceMounter: %v", err)
	}
	if got, err := m.GetDeviceMountPath(c.Spec(n)); got != path || err != nil {
		k.Errorf("GetDeviceMountPath = %s, %v after a restart, %s before", got, err, path)
	}
}

func checkDeviceRefs(k *kit, c Case) {
	n := k.node(c)
	d, ok := n.device(k, "a")
	if !ok {
		return
	}
	d.mustMount(k)
	// The pod's part alone: the device stays until mustUnmount.
	if err := d.SetUp(k.Context(), c.Args); err != nil {
		k.Fatalf("SetUp: %v", err)
	}
	want := 0 // where neither MountDevice nor SetUp, for a key of the pod's, had a device to mount
	if slices.ContainsFunc(n.Mounts(k), func(e mount.Entry) bool { return e.Target == d.Path }) {
		want = 1
	}
	d.assertShown()
	d.assertRefs(k, want)
	if err := d.Unmounter().TearDown(k.Context()); err != nil {
		k.Fatalf("TearDown: %v", err)
	}
	d.assertRefs(k, 0)
	d.mustUnmount(k, n)
	n.AssertNothingMounted(k)
}

func (d device) assertRefs(k *kit, want int) {
	k.Helper()
	if refs, err := d.Plugin.GetDeviceMountRefs(d.Path); err != nil || len(refs) != want {
		k.Errorf("GetDeviceMountRefs = %v, %v; want %d", refs, err, want)
	}
}

func checkAttach(k *kit, c Case) {
	n := k.node(c)
	v := n.volume("a")
	p, _ := volume.AsAttachable(n.sim.Plugin)
	if can, err := p.CanAttach(k.Context(), v.Spec); err != nil || !can {
		return
	}
	name, err := p.GetVolumeName(v.Spec)
	if err != nil {
		k.Fatal(err)
	}
	a, err := p.NewAttacher()
	if err != nil {
		k.Fatalf("NewAttacher: %v", err)
	}
	d, err := p.NewDetacher()
	if err != nil {
		k.Fatalf("NewDetacher: %v", err)
	}
	var paths [2]string
	for i := range paths {
		if paths[i], err = a.Attach(k.Context(), v.Spec, fakehost.NodeName); err != nil {
			k.Fatalf("Attach: %v", err)
		}
	}
	if paths[0] != paths[1] {
		k.Errorf("Attach returns %q, then %q", paths[0], paths[1])
	}
	v.assertAttached(k, a, true)
	for range 2 {
		if err := d.Detach(k.Context(), name, fakehost.NodeName); err != nil {
			k.Fatalf("Detach: %v", err)
		}
	}
	v.assertAttached(k, a, false)
}

func (v *podVolume) assertAttached(k *kit, a volume.Attacher, want bool) {
	k.Helper()
	attached, err := a.VolumesAreAttached(k.Context(), []*volume.Spec{v.Spec}, fakehost.NodeName)
	if err != nil || attached[v.Spec] != want {
		k.Errorf("VolumesAreAttached says %v, %v; want %v", attached[v.Spec], err, want)
	}
}

func checkBlock(k *kit, c Case) {
	n := k.node(c)
	spec := c.Spec(n)
	pod := n.pod("a", spec)
	p, _ := volume.AsBlock(n.sim.Plugin)
	m, err := p.NewBlockVolumeMapper(spec, pod)
	if err != nil {
		k.Fatalf("NewBlockVolumeMapper: %v", err)
	}
	if _, err := n.sim.Attach(k.Context(), spec, pod); err != nil {
		k.Fatal(err)
	}
	var global, staged, published [2]string
	for i := range staged {
		if global[i], err = m.GetGlobalMapPath(spec); err != nil {
			k.Fatalf("GetGlobalMapPath: %v", err)
		}
		if staged[i], err = m.SetUpDevice(k.Context()); err != nil {
			k.Fatalf("SetUpDevice: %v", err)
		}
		if published[i], err = m.MapPodDevice(k.Context()); err != nil {
			k.Fatalf("MapPodDevice: %v", err)
		}
	}
	if global[0] != global[1] || staged[0] != staged[1] || published[0] != published[1] {
		k.Errorf("called again, the paths are others: %q, %q, %q", global, staged, published)
	}
	n.assertUnmapped(k, spec.Name(), pod.UID, global[0], staged[0])
	name, err := n.sim.Plugin.GetVolumeName(spec)
	if err != nil {
		k.Fatalf("GetVolumeName: %v", err)
	}
	if err := n.sim.Detach(k.Context(), spec, name); err != nil {
		k.Fatal(err)
	}
}

// assertUnmapped undoes a block volume twice, by a new instance.
func (n *Node) assertUnmapped(k *kit, name string, uid types.UID, global, staged string) {
	k.Helper()
	again := n.restart()
	p, _ := volume.AsBlock(again.sim.Plugin)
	u, err := p.NewBlockVolumeUnmapper(name, uid)
	if err != nil {
		k.Fatalf("NewBlockVolumeUnmapper: %v", err)
	}
	for range 2 {
		if err := u.UnmapPodDevice(k.Context()); err != nil {
			k.Fatalf("UnmapPodDevice: %v", err)
		}
		if err := u.TearDownDevice(k.Context(), global, staged); err != nil {
			k.Fatalf("TearDownDevice: %v", err)
		}
	}
	again.AssertTornDown(k)
}
