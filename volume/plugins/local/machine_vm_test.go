package local_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/blockdev"
	"github.com/podvol/podvol/util/testenv/agent"
	"github.com/podvol/podvol/util/testenv/invariant"
	"github.com/podvol/podvol/util/testenv/lio"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/localdisk"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/local"
)

// SCSI disks of the machine, that come, grow and vanish as disks of a SAN do.
func TestSCSIDisksInAMachine(t *testing.T) {
	vmtest.Run(t, func(t *testing.T) {
		san := lio.NewLoopback(t)
		for name, test := range map[string]func(*scsiNode){
			"from claim to growth":      (*scsiNode).testFromClaimToGrowth,
			"device":                    (*scsiNode).testDevice,
			"vanished under a writer":   (*scsiNode).testVanished,
			"vanished during a restart": (*scsiNode).testVanishedDuringARestart,
			"another disk":              (*scsiNode).testAnotherDisk,
		} {
			t.Run(name, func(t *testing.T) {
				n := &scsiNode{Agent: &agent.Agent{T: t, Root: t.TempDir(), Store: objects.NewStore(), Plugin: func() volume.VolumePlugin { return local.New(local.Config{}) }}, t: t, san: san, grown: make(told, 1)}
				n.Resizes = n.grown
				n.disk = lio.NewDisk(t, "disk", fmt.Sprintf("%.16x", name), 64<<20)
				n.device = san.Attach(0, n.disk)
				n.Start()
				t.Cleanup(n.Stop)
				test(n)
				n.Stop()
				n.wantNothing()
				san.Detach(0)
				if _, err := os.Lstat(n.device); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s is left: %v", n.device, err)
				}
			})
		}
	})
}

// scsiNode is a node with a disk of a SAN.
type scsiNode struct {
	*agent.Agent
	t      *testing.T
	san    *lio.Loopback
	disk   *lio.Disk
	device string
	grown  told
}

func (n *scsiNode) must(errs ...error) {
	n.t.Helper()
	testtool.Must(n.t, errors.Join(errs...))
}

// volume adds a PersistentVolume of the disk at a path, with its claim.
func (n *scsiNode) volume(path string, mode v1.PersistentVolumeMode) {
	n.t.Helper()
	d, err := blockdev.System{}.Open(n.device, unix.O_RDONLY)
	n.must(err)
	defer d.Close()
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk", Annotations: map[string]string{localdisk.VolumeID: localdisk.DeviceIdentity(d).Best()}}}
	if !strings.HasPrefix(pv.Annotations[localdisk.VolumeID], "wwid:naa.6001405") {
		n.t.Errorf("the disk is %q", pv.Annotations[localdisk.VolumeID])
	}
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("64Mi")}
	pv.Spec.VolumeMode = &mode
	pv.Spec.Local = &v1.LocalVolumeSource{Path: path}
	if mode == v1.PersistentVolumeFilesystem {
		pv.Spec.Local.FSType = new("ext4")
	}
	n.Bind(pv)
}

// wantNothing: no pod is left.
func (n *scsiNode) wantNothing() {
	n.t.Helper()
	mounted, err := invariant.Mounted(n.Root, table.Kernel())
	n.must(err)
	keys, err := invariant.Records(n.Root)
	n.must(err)
	keys = slices.DeleteFunc(keys, func(key string) bool { return strings.HasPrefix(key, "buried/") }) // a running manager's, of what is gone
	if len(mounted)+len(keys) > 0 {
		n.t.Errorf("left: mounts %v, records %v", mounted, keys)
	}
}

func (n *scsiNode) restart() {
	n.Stop()
	n.Start()
}

// Two pods have the disk, which grows under them, and the agent begins again in each state.
func (n *scsiNode) testFromClaimToGrowth() {
	n.volume(n.device, v1.PersistentVolumeFilesystem)
	n.restart()
	one := n.SetUp(agent.Pod("one", "disk"))
	n.must(os.WriteFile(filepath.Join(one, "file"), []byte("data"), 0o600))
	n.restart()
	two := n.SetUp(agent.Pod("two", "disk"))
	n.WantFile(filepath.Join(two, "file"), "data")
	var before, after unix.Statfs_t
	n.must(unix.Statfs(one, &before))
	n.disk.Resize(n.t, 256<<20)
	lio.Rescan(n.t, n.device)
	n.grow("256Mi")
	n.restart()
	n.SetUp(agent.Pod("one", "disk"))
	if n.must(unix.Statfs(two, &after)); after.Blocks < 3*before.Blocks {
		n.t.Errorf("from %d blocks to %d", before.Blocks, after.Blocks)
	}
	n.TearDown("one")
	n.restart()
	n.WantFile(filepath.Join(n.SetUp(agent.Pod("two", "disk")), "file"), "data")
	n.TearDown("two")
	n.restart()
	n.WantFile(filepath.Join(n.SetUp(agent.Pod("three", "disk")), "file"), "data")
	n.TearDown("three")
}

// grow is a controller's part, and waits until the node has done its own.
func (n *scsiNode) grow(size string) {
	n.t.Helper()
	ctx := n.t.Context()
	pv, err := objects.Get[*v1.PersistentVolume](ctx, n.Store, volume.NewObjectRef("PersistentVolume", "", "disk"))
	n.must(err)
	pv = pv.DeepCopy()
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	_, err = n.Store.Update(ctx, pv)
	n.must(err)
	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, n.Store, volume.NewObjectRef("PersistentVolumeClaim", "ns", "disk"))
	n.must(err)
	claim = claim.DeepCopy()
	claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue}}
	_, err = n.Store.UpdateStatus(ctx, claim)
	n.must(err, <-n.grown)
}

// told is a NodeResizeReporter.
type told chan error

func (c told) ReportNodeResize(_ context.Context, _ types.NamespacedName, _ types.UID, _ resource.Quantity, err error) error {
	select {
	case c <- err:
	default: // it was told before
	}
	return nil
}

// podDevice is a pod's link to the disk.
func (n *scsiNode) podDevice(pod string) string {
	return filepath.Join(n.Root, "pods/uid-"+pod+"/volumeDevices/kubernetes.io~local-volume/disk")
}

// What a pod writes to the device is on the disk, and the pod can go when that has gone.
func (n *scsiNode) testDevice() {
	n.volume(n.device, v1.PersistentVolumeBlock)
	n.SetUp(agent.Pod("one", "disk"))
	f, err := os.OpenFile(n.podDevice("one"), os.O_RDWR, 0)
	n.must(err)
	_, err = f.WriteString("raw data")
	n.must(err, f.Sync(), f.Close())
	n.restart()
	n.SetUp(agent.Pod("one", "disk"))
	n.TearDown("one")
	got := make([]byte, 8)
	backing, err := os.Open(n.disk.Backing)
	n.must(err)
	defer backing.Close()
	if _, err := backing.ReadAt(got, 0); string(got) != "raw data" || err != nil {
		n.t.Errorf("the disk has %q, %v", got, err)
	}
	n.SetUp(agent.Pod("two", "disk"))
	f, err = os.OpenFile(n.podDevice("two"), os.O_RDWR, 0)
	n.must(err)
	n.san.Detach(0)
	_, err = f.WriteString("more")
	if err := errors.Join(err, f.Sync()); err == nil {
		n.t.Error("the writer was told of nothing")
	}
	_ = f.Close()
	n.TearDown("two")
}

// The disk goes while a pod writes: the writer is told, the pod can go, and what was synced is
// there when the disk is back.
func (n *scsiNode) testVanished() {
	link := filepath.Join(n.t.TempDir(), "disk") // as udev makes it: the device has another name later
	n.must(os.Symlink(n.device, link))
	n.volume(link, v1.PersistentVolumeFilesystem)
	path := n.SetUp(agent.Pod("one", "disk"))
	f, err := os.Create(filepath.Join(path, "file"))
	n.must(err)
	_, err = f.WriteString("data")
	n.must(err, f.Sync())
	written := make(chan error, 1)
	began := make(chan struct{})
	go func() {
		var err error
		for i := 0; err == nil; i++ {
			_, err = f.WriteString("more")
			err = errors.Join(err, f.Sync())
			if i == 0 {
				close(began)
			}
		}
		written <- errors.Join(err, f.Close())
	}()
	<-began
	n.san.Detach(0)
	if err := <-written; err == nil {
		n.t.Error("the writer was told of nothing")
	}
	n.TearDown("one")
	n.wantNothing()
	ctx, cancel := context.WithTimeout(n.t.Context(), 10*time.Second)
	defer cancel()
	_, err = n.Manager.SetUpPod(ctx, agent.Pod("two", "disk"))
	if err == nil || !strings.Contains(err.Error(), link) {
		n.t.Errorf("without its disk: %v", err)
	}
	n.TearDown("two")
	n.device = n.san.Attach(0, n.disk)
	n.must(os.Remove(link), os.Symlink(n.device, link))
	data, err := os.ReadFile(filepath.Join(n.SetUp(agent.Pod("three", "disk")), "file"))
	if !strings.HasPrefix(string(data), "data") || err != nil {
		n.t.Errorf("the file has %q, %v", data, err)
	}
	n.TearDown("three")
}

// The disk goes while no agent runs: the next one takes the pod down.
func (n *scsiNode) testVanishedDuringARestart() {
	n.volume(n.device, v1.PersistentVolumeFilesystem)
	n.SetUp(agent.Pod("one", "disk"))
	n.Stop()
	n.san.Detach(0)
	n.Start()
	n.TearDown("one")
	n.wantNothing()
	n.device = n.san.Attach(0, n.disk)
}

// Another disk at the path is neither mounted nor formatted.
func (n *scsiNode) testAnotherDisk() {
	n.volume(n.device, v1.PersistentVolumeFilesystem)
	n.SetUp(agent.Pod("one", "disk"))
	n.TearDown("one")
	n.san.Detach(0)
	other := lio.NewDisk(n.t, "other", fmt.Sprintf("%.16x", "quite another disk"), 64<<20)
	if device := n.san.Attach(0, other); device != n.device {
		n.t.Fatalf("it is %s, not %s", device, n.device)
	}
	ctx, cancel := context.WithTimeout(n.t.Context(), 10*time.Second)
	defer cancel()
	_, err := n.Manager.SetUpPod(ctx, agent.Pod("two", "disk"))
	if wrong, ok := errors.AsType[*localdisk.OtherDiskError](err); !ok || wrong.Found == "" {
		n.t.Errorf("SetUpPod = %v", err)
	}
	n.TearDown("two")
	data := make([]byte, 1<<20)
	f, err := os.Open(other.Backing)
	n.must(err)
	defer f.Close()
	if _, err := f.ReadAt(data, 0); err != nil || strings.Trim(string(data), "\x00") != "" {
		n.t.Errorf("something was written to it, %v", err)
	}
}
