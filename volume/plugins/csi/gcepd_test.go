package csi_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/csi"
	csicontroller "github.com/podvol/podvol/volume/plugins/csi/controller"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// driversVar names the directory that testdata/csi/drivers/build prints.
const driversVar = "PODVOL_CSI_DRIVERS"

const gcePD = "pd.csi.storage.gke.io"

// released lets everything be deleted.
type released struct{}

func (released) VerifyReleased(context.Context, *v1.PersistentVolume) error { return nil }

// disks is a node with Google's driver over a cloud on this machine.
type disks struct {
	t           *testing.T
	programs    string
	dir, socket string
	process     *exec.Cmd
	log         bytes.Buffer
	host        *fakehost.Host
	attachments map[string]any
	node        *csi.Plugin
	controller  *csicontroller.Plugin
	conn        *grpc.ClientConn
}

// The whole life of a real driver's volumes: two pods, restarts of this process and of the
// driver, and growth. That of ext4 while it is mounted needs CAP_SYS_RESOURCE of the host,
// which containers lack, and is not tried.
func TestGCEPersistentDisks(t *testing.T) {
	withDisks(t, func(t *testing.T, programs string) {
		for name, life := range map[string]func(*disks){
			"ext4":  func(d *disks) { d.liveMounted("ext4") },
			"xfs":   func(d *disks) { d.liveMounted("xfs") },
			"block": func(d *disks) { d.liveAsBlock() },
		} {
			t.Run(name, func(t *testing.T) { life(newDisks(t, programs)) })
		}
	})
}

// withDisks runs a test of the driver where there is one.
func withDisks(t *testing.T, f func(t *testing.T, programs string)) {
	t.Helper()
	programs := os.Getenv(driversVar)
	if programs == "" {
		t.Logf("not run: set %s to what testdata/csi/drivers/build prints", driversVar)
		return
	}
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) { f(t, programs) })
}

func newDisks(t *testing.T, programs string) *disks {
	t.Helper()
	dir := csitest.SocketDir(t)
	d := &disks{t: t, programs: programs, dir: filepath.Join(dir, "disks"), socket: filepath.Join(dir, "s"), host: fakehost.NewOnKernel(t, host.New(host.Config{})), attachments: map[string]any{}}
	d.host.Attachments, d.host.Releases = lookUp{nil, d.attachments}, released{}
	t.Cleanup(func() { // once the driver has ended
		if t.Failed() {
			t.Logf("the driver's log:\n%s", d.log.String())
		}
	})
	d.startDriver()
	t.Cleanup(d.stopDriver)
	d.restart()
	return d
}

func (d *disks) must(errs ...error) {
	d.t.Helper()
	for _, err := range errs {
		if err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *disks) startDriver() {
	d.t.Helper()
	d.process = exec.Command(filepath.Join(d.programs, "gcepd"), "-socket", d.socket, "-dir", d.dir)
	d.process.Stdout, d.process.Stderr = &d.log, &d.log
	d.must(d.process.Start())
	conn, err := csitest.Dial(d.socket)
	d.must(err)
	d.conn = conn
	ctx, cancel := context.WithTimeout(d.t.Context(), time.Minute)
	defer cancel()
	_, err = spec.NewIdentityClient(conn).Probe(ctx, &spec.ProbeRequest{}, grpc.WaitForReady(true))
	d.must(err)
}

func (d *disks) stopDriver() {
	d.conn.Close()
	_ = d.process.Process.Kill()
	_ = d.process.Wait() // its error is the signal
}

// restart is a new process of ours.
func (d *disks) restart() {
	d.t.Helper()
	c := csi.Config{Drivers: map[string]string{gcePD: d.socket}}
	node, err := csi.New(c)
	d.must(err)
	controller, err := csicontroller.New(csicontroller.Config{Drivers: c.Drivers})
	d.must(err, node.Init(d.host), controller.Init(d.host))
	d.t.Cleanup(func() { node.Close(); controller.Close() })
	d.node, d.controller = node, controller
}

// provision has a volume made for a claim.
func (d *disks) provision(claim *v1.PersistentVolumeClaim, fsType string) *v1.PersistentVolume {
	d.t.Helper()
	m, err := d.controller.NewProvisioner(volume.VolumeOptions{PVName: "pvc-1", PVC: claim, Provisioner: gcePD, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
		Parameters: map[string]string{"type": "pd-balanced", "csi.storage.k8s.io/fstype": fsType}})
	d.must(err)
	pv, err := m.Provision(d.t.Context(), nil, nil)
	d.must(err)
	again, err := m.Provision(d.t.Context(), nil, nil)
	d.must(err)
	if again.Spec.CSI.VolumeHandle != pv.Spec.CSI.VolumeHandle || pv.Spec.NodeAffinity == nil {
		d.t.Errorf("made %+v, then %+v", pv.Spec, again.Spec)
	}
	return pv
}

// create has a volume made and attached.
func (d *disks) create(fsType string, mode v1.PersistentVolumeMode) *volume.Spec {
	d.t.Helper()
	pv := d.provision(pvbuild.NewClaim("data", "10Gi", pvbuild.WantsMode(mode)), fsType)
	info, err := spec.NewNodeClient(d.conn).NodeGetInfo(d.t.Context(), &spec.NodeGetInfoRequest{})
	d.must(err)
	c := &spec.VolumeCapability{AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	if mode == v1.PersistentVolumeBlock {
		c.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{FsType: fsType}}
	}
	attached, err := spec.NewControllerClient(d.conn).ControllerPublishVolume(d.t.Context(), &spec.ControllerPublishVolumeRequest{
		VolumeId: pv.Spec.CSI.VolumeHandle, NodeId: info.NodeId, VolumeCapability: c, VolumeContext: pv.Spec.CSI.VolumeAttributes})
	d.must(err)
	d.attachments[attachmentName(pv.Spec.CSI.VolumeHandle)] = &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: attached.PublishContext}}
	d.t.Cleanup(func() { // also after a failure, so that no loop device is left
		_, err := spec.NewControllerClient(d.conn).ControllerUnpublishVolume(context.Background(), &spec.ControllerUnpublishVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle, NodeId: info.NodeId})
		if err != nil {
			d.t.Error(err)
		}
	})
	return volume.NewSpecFromPersistentVolume(pv, false)
}

func attachmentName(handle string) string { return "csi-" + sha256Hex(handle+gcePD+"node1") }

func (d *disks) mounter(s *volume.Spec, uid types.UID) volume.Mounter {
	d.t.Helper()
	m, err := d.node.NewMounter(s, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: string(uid), UID: uid}})
	d.must(err)
	return m
}

func (d *disks) liveMounted(fsType string) {
	d.t.Helper()
	ctx, s := d.t.Context(), d.create(fsType, v1.PersistentVolumeFilesystem)
	mounter, err := d.node.NewDeviceMounter()
	d.must(err)
	staging, err := mounter.GetDeviceMountPath(s)
	d.must(err, mounter.MountDevice(ctx, s, "", staging, volume.DeviceMounterArgs{}))
	first := d.mounter(s, "u1")
	d.must(first.SetUp(ctx, volume.MounterArgs{}), os.WriteFile(filepath.Join(first.GetPath(), "file"), []byte("data"), 0o600))
	d.restart()
	second := d.mounter(s, "u2")
	d.must(second.SetUp(ctx, volume.MounterArgs{}))
	d.stopDriver()
	d.startDriver()
	d.must(d.mounter(s, "u1").SetUp(ctx, volume.MounterArgs{}))
	if data, err := os.ReadFile(filepath.Join(second.GetPath(), "file")); string(data) != "data" || err != nil {
		d.t.Errorf("the other pod reads %q, %v", data, err)
	}
	before, err := second.GetMetrics(ctx)
	d.must(err)
	if fsType == "xfs" {
		d.grow(s, volume.NodeResizeOptions{VolumeSpec: s, DeviceMountPath: second.GetPath(), DeviceStagePath: staging})
		after, err := second.GetMetrics(ctx)
		d.must(err)
		if grown := after.Capacity.Value() - before.Capacity.Value(); grown < 1<<30 {
			d.t.Errorf("grown from %v to %v", before.Capacity, after.Capacity)
		}
	}
	for _, uid := range []types.UID{"u1", "u2"} {
		u, err := d.node.NewUnmounter(s.Name(), uid)
		d.must(err, u.TearDown(ctx))
	}
	unmounter, err := d.node.NewDeviceUnmounter()
	d.must(err, unmounter.UnmountDevice(ctx, staging))
	d.remove(s)
}

func (d *disks) liveAsBlock() {
	d.t.Helper()
	ctx, s := d.t.Context(), d.create("", v1.PersistentVolumeBlock)
	m, err := d.node.NewBlockVolumeMapper(s, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "u1", UID: "u1"}})
	d.must(err)
	_, err = m.SetUpDevice(ctx)
	d.must(err)
	device, err := m.MapPodDevice(ctx)
	d.must(err)
	if info, err := os.Stat(device); err != nil || info.Mode().Type() != os.ModeDevice {
		d.t.Errorf("published is %v, %v", info, err)
	}
	d.restart()
	d.grow(s, volume.NodeResizeOptions{VolumeSpec: s, DevicePath: device})
	if metrics, err := m.GetMetrics(ctx); err != nil || metrics.Capacity.Value() != 12<<30 {
		d.t.Errorf("metrics %+v, %v", metrics, err)
	}
	u, err := d.node.NewBlockVolumeUnmapper(s.Name(), "u1")
	d.must(err, u.UnmapPodDevice(ctx), u.TearDownDevice(ctx, "", ""))
	d.remove(s)
}

func (d *disks) grow(s *volume.Spec, o volume.NodeResizeOptions) {
	d.t.Helper()
	_, err := spec.NewControllerClient(d.conn).ControllerExpandVolume(d.t.Context(), &spec.ControllerExpandVolumeRequest{
		VolumeId: s.PersistentVolume.Spec.CSI.VolumeHandle, CapacityRange: &spec.CapacityRange{RequiredBytes: 12 << 30}})
	d.must(err)
	o.NewSize, o.OldSize = resource.MustParse("12Gi"), resource.MustParse("10Gi")
	if done, err := d.node.NodeExpand(d.t.Context(), o); !done || err != nil {
		d.t.Errorf("NodeExpand = %v, %v", done, err)
	}
}

// remove detaches and deletes the volume.
func (d *disks) remove(s *volume.Spec) {
	d.t.Helper()
	handle := s.PersistentVolume.Spec.CSI.VolumeHandle
	info, err := spec.NewNodeClient(d.conn).NodeGetInfo(d.t.Context(), &spec.NodeGetInfoRequest{})
	d.must(err)
	_, err = spec.NewControllerClient(d.conn).ControllerUnpublishVolume(d.t.Context(), &spec.ControllerUnpublishVolumeRequest{VolumeId: handle, NodeId: info.NodeId})
	d.must(err)
	delete(d.attachments, attachmentName(handle)) // as a controller does
	deleter, err := d.controller.NewDeleter(s)
	d.must(err, deleter.Delete(d.t.Context()), deleter.Delete(d.t.Context()))
	left, err := filepath.Glob(filepath.Join(d.dir, "*"))
	if err != nil || len(left) > 0 {
		d.t.Errorf("%q is left, %v", left, err)
	}
	d.host.AssertNothingMounted(d.t)
}
