package csi_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// Two pods share what is staged once, through a restart of the node's process.
func TestLifeOfAPersistentVolume(t *testing.T) {
	life(newBench(t, everything(), csi.Config{}), pvSpec())
}

// Each call is told of when it has ended, with the code of its answer.
func TestOperationsAreTold(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	var told []string
	stop := b.plugin.Subscribe(func(o csi.Operation) {
		if o.Driver != driverName || o.Took <= 0 {
			t.Errorf("told %+v", o)
		}
		told = append(told, strings.TrimPrefix(o.Method, "/csi.v1.")+" "+o.Code)
	})
	b.driver.Inject(csitest.Fault{Match: csitest.Method("NodePublishVolume"), Nth: 1, Err: status.Error(codes.Internal, "injected")})
	if err := b.setUp(pvSpec(), pod("u1"), volume.MounterArgs{}); err == nil {
		t.Error("a failed call is no failure")
	}
	want := []string{"Identity/GetPluginInfo OK", "Node/NodeGetCapabilities OK", "Node/NodeStageVolume OK", "Node/NodePublishVolume Internal"}
	if !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
	stop()
	b.must(b.tearDown(pvSpec(), "u1"))
	if len(told) != len(want) {
		t.Errorf("told after the end: %q", told)
	}
}

func life(b *bench, s *volume.Spec) {
	b.t.Helper()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	path := b.mounter(s, pod("u1")).GetPath()
	if want := filepath.Join(b.host.RootDir, "pods/u1/volumes/kubernetes.io~csi/pv1/mount"); path != want {
		b.t.Errorf("the volume is at %s, want %s", path, want)
	}
	b.must(os.WriteFile(filepath.Join(path, "file"), []byte("data"), 0o600))
	second := b.mounter(s, pod("u2"))
	b.must(second.SetUp(b.t.Context(), volume.MounterArgs{}))
	if data, err := os.ReadFile(filepath.Join(second.GetPath(), "file")); string(data) != "data" || err != nil {
		b.t.Errorf("the other pod reads %q, %v", data, err)
	}
	refs, err := b.plugin.GetDeviceMountRefs(b.devicePath(s))
	slices.Sort(refs)
	if want := []string{path, second.GetPath()}; err != nil || !slices.Equal(refs, want) {
		b.t.Errorf("refs %v, %v, want %v", refs, err, want)
	}
	b.wantMethods("NodeStageVolume", "NodePublishVolume", "NodePublishVolume")
	b.restart()
	// A mounted volume is not published again.
	b.must(b.mounter(s, pod("u1")).SetUp(b.t.Context(), volume.MounterArgs{}))
	u, err := b.plugin.NewUnmounter("pv1", "u2")
	b.must(err, u.TearDown(b.t.Context()), u.TearDown(b.t.Context()))
	b.must(b.tearDown(s, "u1"), b.tearDown(s, "u1"))
	b.wantMethods("NodeStageVolume", "NodePublishVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume")
	b.wantNothing()
}

func TestKernelLives(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		b := newBenchOn(t, fakehost.NewOnKernel(t, host.New(host.Config{})), everything(), csi.Config{})
		life(b, pvSpec())
		b.driver.ResetCalls()
		if strings.HasSuffix(t.Name(), "/root") { // loop devices are root's
			b.driver.Configure(func(c *csitest.Config) { c.Disk = csitest.Loop })
			life(b, pvSpec(func(pv *v1.PersistentVolume) {
				pv.Spec.CSI.VolumeHandle, pv.Spec.CSI.FSType, pv.Spec.MountOptions = "ext4", "ext4", []string{"noatime"}
			}))
			b.driver.ResetCalls()
			kernelBlock(b)
		}
	})
}

func kernelBlock(b *bench) {
	b.t.Helper()
	ctx := b.t.Context()
	s := pvSpec(func(pv *v1.PersistentVolume) {
		pv.Spec.VolumeMode, pv.Spec.CSI.VolumeHandle = new(v1.PersistentVolumeBlock), "block"
	})
	mapper, err := b.plugin.NewBlockVolumeMapper(s, pod("u1"))
	b.must(err)
	staging, err := mapper.SetUpDevice(ctx)
	b.must(err)
	device, err := mapper.MapPodDevice(ctx)
	b.must(err)
	again, err := mapper.MapPodDevice(ctx)
	b.must(err)
	base := filepath.Join(b.host.RootDir, "plugins/kubernetes.io/csi/volumeDevices")
	if staging != base+"/staging/pv1" || device != base+"/publish/pv1/u1" || again != device {
		b.t.Errorf("staged at %s, published at %s", staging, device)
	}
	if info, err := os.Stat(device); err != nil || info.Mode().Type() != os.ModeDevice {
		b.t.Errorf("published is %v, %v", info, err)
	}
	global, err := mapper.GetGlobalMapPath(s)
	dir, name := mapper.GetPodDeviceMapPath()
	if global != base+"/pv1/dev" || err != nil || name != "pv1" || dir != filepath.Join(b.host.RootDir, "pods/u1/volumeDevices/kubernetes.io~csi") {
		b.t.Errorf("places %s, %v, %s, %s", global, err, dir, name)
	}
	if metrics, err := mapper.GetMetrics(ctx); err != nil || metrics.Capacity.Value() != 64<<20 {
		b.t.Errorf("metrics %+v, %v", metrics, err)
	}
	b.restart()
	rebuilt, err := b.plugin.ConstructBlockVolumeSpec(ctx, "u1", "pv1", "")
	if err != nil || !rebuilt.IsBlock() || rebuilt.PersistentVolume.Spec.CSI.VolumeHandle != "block" {
		b.t.Errorf("rebuilt %+v, %v", rebuilt, err)
	}
	unmapper, err := b.plugin.NewBlockVolumeUnmapper("pv1", "u1")
	b.must(err, unmapper.UnmapPodDevice(ctx), unmapper.UnmapPodDevice(ctx), unmapper.TearDownDevice(ctx, "", ""), unmapper.TearDownDevice(ctx, "", ""))
	b.wantMethods("NodeStageVolume", "NodePublishVolume", "NodeGetVolumeStats", "NodeGetVolumeHealth", "NodeGetStorageHealth", "NodeUnpublishVolume", "NodeUnstageVolume")
	b.wantNothing()
}

// A block volume of two pods, by a driver whose device is a file.
func TestBlockVolume(t *testing.T) {
	dc := everything()
	dc.Disk = csitest.File
	b := newBench(t, dc, csi.Config{})
	ctx, s := t.Context(), pvSpec(func(pv *v1.PersistentVolume) { pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock) })
	first, err := b.plugin.NewBlockVolumeMapper(s, pod("u1"))
	b.must(err)
	second, err := b.plugin.NewBlockVolumeMapper(s, pod("u2"))
	b.must(err)
	staging, err := first.SetUpDevice(ctx)
	b.must(err)
	for _, m := range []volume.BlockVolumeMapper{first, second} {
		_, err := m.MapPodDevice(ctx)
		b.must(err)
	}
	r := lastRequest[*spec.NodePublishVolumeRequest](b, "NodePublishVolume")
	if r.VolumeCapability.GetBlock() == nil || r.StagingTargetPath != staging || filepath.Base(r.TargetPath) != "u2" {
		t.Errorf("published with %v", r)
	}
	// A call that is refused takes nothing away from the other pod.
	third, err := b.plugin.NewBlockVolumeMapper(s, pod("u3"))
	b.must(err)
	remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodePublishVolume"), Err: status.Error(codes.Internal, "no")})
	_, err = third.MapPodDevice(ctx)
	remove()
	wantUncertain(t, err, false)
	b.restart()
	for _, uid := range []types.UID{"u1", "u2", "u3"} {
		u, err := b.plugin.NewBlockVolumeUnmapper("pv1", uid)
		b.must(err, u.UnmapPodDevice(ctx))
	}
	u, err := b.plugin.NewBlockVolumeUnmapper("pv1", "u2")
	b.must(err, u.TearDownDevice(ctx, "", ""))
	b.wantMethods("NodeStageVolume", "NodePublishVolume", "NodePublishVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume")
	b.wantNothing()
	if _, err := os.Stat(filepath.Join(b.host.RootDir, "plugins/kubernetes.io/csi")); err != nil {
		t.Errorf("drivers that have the plugin's directory mounted would not see the next: %v", err)
	}
}

// A driver that does not stage gets no such call, and nothing is left of the device.
func TestDriverThatDoesNotStage(t *testing.T) {
	b := newBench(t, csitest.Config{}, csi.Config{})
	s := pvSpec()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	if r := lastRequest[*spec.NodePublishVolumeRequest](b, "NodePublishVolume"); r.StagingTargetPath != "" {
		t.Errorf("the staging path is %q", r.StagingTargetPath)
	}
	b.must(b.tearDown(s, "u1"))
	b.wantMethods("NodePublishVolume", "NodeUnpublishVolume")
	b.wantNothing()
}

func TestInlineVolume(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	s := inlineSpec()
	wantUncertain(t, b.setUp(s, pod("u1"), volume.MounterArgs{}), false) // the defaults have none
	b.object(storagev1.CSIDriverSpec{PodInfoOnMount: new(true), VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecycleEphemeral}})
	wantUncertain(t, b.setUp(pvSpec(), pod("u1"), volume.MounterArgs{}), false)
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}), b.setUp(s, pod("u2"), volume.MounterArgs{}))
	r := lastRequest[*spec.NodePublishVolumeRequest](b, "NodePublishVolume")
	name, err := b.plugin.GetPodVolumeName(s, "u2")
	if err != nil || name != driverName+"^"+r.VolumeId || !strings.HasPrefix(r.VolumeId, "csi-") || len(r.VolumeId) != 68 || r.StagingTargetPath != "" {
		t.Errorf("the id is %q, the name %q, %v", r.VolumeId, name, err)
	}
	want := map[string]string{
		"csi.storage.k8s.io/pod.name": "web", "csi.storage.k8s.io/pod.namespace": "shop", "csi.storage.k8s.io/pod.uid": "u2",
		"csi.storage.k8s.io/serviceAccount.name": "seller", "csi.storage.k8s.io/ephemeral": "true",
	}
	if diff := cmp.Diff(want, r.VolumeContext); diff != "" {
		t.Errorf("volume context (-want +got):\n%s", diff)
	}
	b.restart()
	b.must(b.tearDown(s, "u1"), b.tearDown(s, "u2"))
	b.wantMethods("NodePublishVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnpublishVolume")
	b.wantNothing()
	if ids, err := b.driver.Volumes(); len(ids) > 0 || err != nil {
		t.Errorf("the driver has kept %v, %v", ids, err)
	}
}

// The files are the kubelet's, letter by letter.
func TestVolData(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	s := pvSpec()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	for path, want := range map[string]map[string]string{
		filepath.Dir(b.devicePath(s)): {"volumeHandle": "h1", "driverName": driverName, "seLinuxMountContext": ""},
		filepath.Dir(b.mounter(s, pod("u1")).GetPath()): {
			"specVolID": "pv1", "volumeHandle": "h1", "driverName": driverName, "nodeName": "node1", "volumeLifecycleMode": "Persistent", "seLinuxMountContext": "",
			// sha256 of h1csitest.podvol.ionode1
			"attachmentID": "csi-" + sha256Hex("h1"+driverName+"node1"),
		},
	} {
		text, err := os.ReadFile(filepath.Join(path, "vol_data.json"))
		var got map[string]string
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v, (-want +got):\n%s", path, err, diff)
		}
	}
	if want := filepath.Join(b.host.RootDir, "plugins/kubernetes.io/csi", driverName, sha256Hex("h1"), "globalmount"); b.devicePath(s) != want {
		t.Errorf("staged at %s, want %s", b.devicePath(s), want)
	}
	for _, at := range []string{b.mounter(s, pod("u1")).GetPath(), filepath.Dir(b.mounter(s, pod("u1")).GetPath())} {
		rebuilt, err := b.plugin.ConstructVolumeSpec(t.Context(), "pv1", at)
		if err != nil || rebuilt.Complete || rebuilt.Spec.PersistentVolume.Spec.CSI.VolumeHandle != "h1" {
			t.Errorf("rebuilt %+v, %v", rebuilt, err)
		}
	}
	b.must(b.tearDown(s, "u1"))
	b.wantNothing()
}

// A vol_data.json that a power cut emptied, or that is gone, is made up for.
func TestLostVolData(t *testing.T) {
	for name, lose := range map[string]func(string) error{
		"empty": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"torn":  func(path string) error { return os.WriteFile(path, []byte(`{"volumeHandle": "h`), 0o600) },
		"gone":  os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, everything(), csi.Config{})
			s := pvSpec()
			lost := func() {
				b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
				b.must(lose(filepath.Join(filepath.Dir(b.mounter(s, pod("u1")).GetPath()), "vol_data.json")))
			}
			lost()
			b.restart() // the mount table shows on what the volume is
			rebuilt, err := b.plugin.ConstructVolumeSpec(t.Context(), "pv1", filepath.Dir(b.mounter(s, pod("u1")).GetPath()))
			b.must(err)
			if got := rebuilt.Spec.PersistentVolume.Spec.CSI.VolumeHandle; got != "h1" {
				t.Errorf("rebuilt with the handle %q", got)
			}
			u, err := b.plugin.NewUnmounter("pv1", "u1")
			b.must(err, u.TearDown(t.Context()))
			lost()
			b.must(lose(filepath.Join(filepath.Dir(b.devicePath(s)), "vol_data.json")))
			b.restart() // the caller's own record is read before a teardown
			if _, err := b.plugin.GetVolumeName(s); err != nil {
				t.Fatal(err)
			}
			b.must(b.tearDown(s, "u1"))
			b.wantNothing()
		})
	}
}

// A crash while a vol_data.json is written leaves a part of it under another name. That keeps
// nothing from being unmounted.
func TestUnfinishedVolData(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	s := pvSpec()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	for _, path := range []string{b.mounter(s, pod("u1")).GetPath(), b.devicePath(s)} {
		b.must(os.WriteFile(filepath.Join(filepath.Dir(path), ".durable-HALF.tmp"), []byte(`{"volumeHa`), 0o600))
	}
	b.restart()
	b.must(b.tearDown(s, "u1"))
	b.wantNothing()
}

// Without anything that says of which driver a mount is, it is left alone.
func TestMountThatNobodyKnows(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	s := pvSpec()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	path := b.mounter(s, pod("u1")).GetPath()
	for _, dir := range []string{filepath.Dir(path), filepath.Dir(b.devicePath(s))} {
		b.must(os.Remove(filepath.Join(dir, "vol_data.json")))
	}
	b.restart()
	u, err := b.plugin.NewUnmounter("pv1", "u1")
	b.must(err)
	if err := u.TearDown(t.Context()); !errors.Is(err, csi.ErrUnidentified) {
		t.Errorf("TearDown = %v", err)
	}
	if _, err := b.plugin.ConstructVolumeSpec(t.Context(), "pv1", path); !errors.Is(err, csi.ErrUnidentified) {
		t.Errorf("ConstructVolumeSpec = %v", err)
	}
	b.wantMethods("NodeStageVolume", "NodePublishVolume")
}

// After a reboot the directories are there and nothing is mounted.
func TestReboot(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	s := pvSpec()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	b.must(b.host.Fake.Unmount(b.mounter(s, pod("u1")).GetPath()), b.host.Fake.Unmount(b.devicePath(s)), b.driver.Reboot())
	b.restart()
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	b.wantMethods("NodeStageVolume", "NodePublishVolume", "NodeStageVolume", "NodePublishVolume")
	b.must(b.tearDown(s, "u1"))
	b.wantNothing()
}

func TestMetrics(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	s := pvSpec()
	m := b.mounter(s, pod("u1"))
	b.must(b.setUp(s, pod("u1"), volume.MounterArgs{}))
	first, err := m.GetMetrics(t.Context())
	if err != nil || first.Capacity.Value() == 0 || first.Inodes.Value() == 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	b.kill()
	if last, err := m.GetMetrics(t.Context()); err == nil || last != first {
		t.Errorf("of a dead driver: %+v, %v", last, err)
	}
	b.driver.Configure(func(c *csitest.Config) { c.Capabilities.Stats, c.Capabilities.Health = false, false })
	b.again()
	if _, err := m.GetMetrics(t.Context()); !errors.Is(err, volume.ErrMetricsUnsupported) {
		t.Errorf("of a driver that does not measure: %v", err)
	}
	b.must(b.tearDown(s, "u1"))
}
