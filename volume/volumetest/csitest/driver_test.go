package csitest_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// life takes a volume through its whole life, each call twice, and looks at its data.
func life(b *bench, id string, c *csi.VolumeCapability) {
	b.t.Helper()
	ctx := patience(b.t)
	b.must(b.stage(ctx, id, c), b.stage(ctx, id, c), b.publish(ctx, id, c), b.publish(ctx, id, c))
	file := filepath.Join(b.target(), "file")
	b.must(os.WriteFile(file, []byte("data"), 0o600))
	b.must(b.unpublish(ctx, id), b.unpublish(ctx, id))
	if _, err := os.Lstat(b.target()); !errors.Is(err, fs.ErrNotExist) {
		b.t.Errorf("the target is left: %v", err)
	}
	b.must(b.publish(ctx, id, c))
	if data, err := os.ReadFile(file); string(data) != "data" || err != nil {
		b.t.Errorf("published again, it holds %q, %v", data, err)
	}
	b.must(b.unpublish(ctx, id), b.unstage(ctx, id), b.unstage(ctx, id))
	b.wantViolations(0)
	if staged, published := b.driver.Staged(), b.driver.Published(); len(staged)+len(published) > 0 {
		b.t.Errorf("left: %v, %v", staged, published)
	}
}

func TestLifeOfADirectory(t *testing.T) {
	b := newBench(t, staged())
	data := b.add("v1", csitest.Directory)
	life(b, "v1", mountCapability(""))
	if _, err := os.Stat(filepath.Join(data, "file")); err != nil {
		t.Error(err)
	}
}

func TestKernelLives(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c := staged()
		c.Mounter = host.New(host.Config{})
		b := newBench(t, c)
		b.add("directory", csitest.Directory)
		life(b, "directory", mountCapability(""))
		if !strings.HasSuffix(t.Name(), "/root") {
			return // loop devices are root's
		}
		for _, fsType := range []string{"ext4", "xfs"} {
			if _, err := b.driver.AddVolume(fsType, 512<<20, csitest.Loop); err != nil {
				t.Fatal(err)
			}
			if err := b.stage(patience(t), fsType, mountCapability(fsType)); err != nil && strings.Contains(err.Error(), "not installed") {
				b.wantCode(err, codes.Internal)
				b.must(b.unstage(patience(t), fsType))
				continue // some machines have no mkfs of it
			}
			life(b, fsType, mountCapability(fsType))
		}
		kernelBlock(b)
	})
}

// kernelBlock publishes a device, which shows the image's content, and grows it.
func kernelBlock(b *bench) {
	b.t.Helper()
	ctx, c := patience(b.t), blockCapability()
	image := b.add("block", csitest.Loop)
	if err := os.WriteFile(image, append([]byte("precious"), make([]byte, 64<<20)...), 0o600); err != nil {
		b.t.Fatal(err)
	}
	b.must(b.stage(ctx, "block", c), b.publish(ctx, "block", c), b.publish(ctx, "block", c))
	info, err := os.Stat(b.target())
	if err != nil || info.Mode().Type() != fs.ModeDevice {
		b.t.Fatalf("published is %v, %v", info, err)
	}
	device, err := os.Open(b.target())
	if err != nil {
		b.t.Fatal(err)
	}
	start := make([]byte, 8)
	_, err = device.Read(start)
	if device.Close(); string(start) != "precious" || err != nil {
		b.t.Errorf("the device begins with %q, %v", start, err)
	}
	larger := &csi.CapacityRange{RequiredBytes: 128 << 20}
	_, err = b.controller.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: "block", CapacityRange: larger})
	b.must(err)
	_, err = b.node.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: "block", VolumePath: b.target(), CapacityRange: larger})
	b.must(err)
	if size, err := b.driver.DeviceSize("block"); size != 128<<20 || err != nil {
		b.t.Errorf("the device has %d bytes, %v", size, err)
	}
	b.must(b.unpublish(ctx, "block"), b.unstage(ctx, "block"))
	if size, err := b.driver.DeviceSize("block"); size != 0 || err != nil {
		b.t.Errorf("unstaged, there is still a device of %d bytes, %v", size, err)
	}
}

func TestCloseTakesEverythingOff(t *testing.T) {
	b := newBench(t, staged())
	b.add("v1", csitest.Directory)
	ctx, c := patience(t), mountCapability("")
	b.must(b.stage(ctx, "v1", c), b.publish(ctx, "v1", c), b.driver.Close(), b.driver.Close())
	mounts, err := table.Of(b.driver.Config().Mounter).All()
	if err != nil || len(mounts) != 1 {
		t.Errorf("mounted: %v, %v", mounts, err)
	}
	if err := b.stage(ctx, "v1", c); status.Code(err) != codes.Unavailable {
		t.Errorf("a closed driver answers %v", err)
	}
}

func TestRulesOfTheCaller(t *testing.T) {
	ctx, c := patience(t), mountCapability("")
	for name, broken := range map[string]func(*bench) error{
		"published before it is staged": func(b *bench) error { return b.publish(ctx, "v1", c) },
		"unstaged while published": func(b *bench) error {
			b.must(b.stage(ctx, "v1", c), b.publish(ctx, "v1", c))
			return b.unstage(ctx, "v1")
		},
		"deleted while staged": func(b *bench) error {
			b.must(b.stage(ctx, "v1", c))
			_, err := b.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "v1"})
			return err
		},
		"staged at nothing": func(b *bench) error {
			_, err := b.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "v1", StagingTargetPath: filepath.Join(b.dir, "none"), VolumeCapability: c})
			return err
		},
		"published below nothing": func(b *bench) error {
			b.must(b.stage(ctx, "v1", c))
			_, err := b.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: "v1", StagingTargetPath: b.staging(false), TargetPath: filepath.Join(b.dir, "none", "mount"), VolumeCapability: c})
			return err
		},
		"used without being attached": func(b *bench) error {
			b.driver.Configure(func(c *csitest.Config) { c.Capabilities.Attach = true })
			return b.stage(ctx, "v1", c)
		},
		"detached while staged": func(b *bench) error {
			b.driver.Configure(func(c *csitest.Config) { c.Capabilities.Attach = true })
			_, err := b.controller.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: "v1", NodeId: "node1", VolumeCapability: c})
			b.must(err, b.stage(ctx, "v1", c))
			_, err = b.controller.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: "v1", NodeId: "node1"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, staged())
			b.add("v1", csitest.Directory)
			b.wantCode(broken(b), codes.FailedPrecondition)
			b.wantViolations(1)
		})
	}
}

func TestOneCallForAVolume(t *testing.T) {
	b := newBench(t, staged())
	b.add("v1", csitest.Directory)
	ctx, c := patience(t), mountCapability("")
	b.must(b.stage(ctx, "v1", c))
	began, release := make(chan struct{}), make(chan struct{})
	remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodePublishVolume"), Hook: func() { close(began) }, Release: release})
	first := make(chan error, 1)
	go func() { first <- b.publish(ctx, "v1", c) }()
	<-began
	remove()
	b.wantCode(b.publish(ctx, "v1", c), codes.Aborted)
	close(release)
	b.must(<-first)
	b.wantViolations(1)
}

// A caller that has given up is no second caller.
func TestRetryAfterADeadline(t *testing.T) {
	b := newBench(t, staged())
	b.add("v1", csitest.Directory)
	c := mountCapability("")
	b.must(b.stage(patience(t), "v1", c))
	began := make(chan struct{})
	remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodePublishVolume"), Hook: func() { close(began) }, Release: make(chan struct{})})
	short, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() { first <- b.publish(short, "v1", c) }()
	<-began
	remove()
	cancel()
	b.wantCode(<-first, codes.Canceled)
	b.must(b.publish(patience(t), "v1", c))
	b.wantViolations(0)
}

// Nor is one that died, to another that comes by a connection of its own: that may be quicker than
// what tells the driver of the end.
func TestRetryBySomebodyElse(t *testing.T) {
	b := newBench(t, staged())
	b.add("v1", csitest.Directory)
	c := mountCapability("")
	b.must(b.stage(patience(t), "v1", c))
	for range 30 {
		began := make(chan struct{})
		remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodePublishVolume"), Nth: 1, Hook: func() { close(began) }, Release: make(chan struct{})})
		short, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		conn, err := csitest.Dial(b.socket)
		b.must(err)
		go func() { first <- b.publish(short, "v1", c) }()
		<-began
		cancel()
		b.wantCode(<-first, codes.Canceled)
		b.driver.Settle()
		b.node = csi.NewNodeClient(conn)
		b.must(b.publish(patience(t), "v1", c))
		remove()
		t.Cleanup(func() { conn.Close() })
	}
	b.wantViolations(0)
}

// A caller that has closed its connection has given all its calls up, whatever the server has
// read of that.
func TestRetryOnceTheCallerIsGone(t *testing.T) {
	b := newBench(t, staged())
	b.add("v1", csitest.Directory)
	c := mountCapability("")
	b.must(b.stage(patience(t), "v1", c))
	for range 30 {
		began := make(chan struct{})
		remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodePublishVolume"), Nth: 1, Hook: func() { close(began) }, Release: make(chan struct{})})
		first, err := csitest.Dial(b.socket)
		b.must(err)
		second, err := csitest.Dial(b.socket)
		b.must(err)
		t.Cleanup(func() { second.Close() })
		ended := make(chan error, 1)
		b.node = csi.NewNodeClient(first)
		go func() { ended <- b.publish(t.Context(), "v1", c) }()
		<-began
		remove()
		b.must(first.Close())
		b.wantCode(<-ended, codes.Canceled)
		b.node = csi.NewNodeClient(second)
		b.must(b.publish(patience(t), "v1", c))
	}
	b.wantViolations(0)
}

func TestFaultsOfEveryCode(t *testing.T) {
	b := newBench(t, staged())
	c := mountCapability("")
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		for _, after := range []bool{false, true} {
			id := code.String()
			b.add(id, csitest.Directory)
			remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeStageVolume"), After: after, Err: status.Error(code, "injected")})
			b.wantCode(b.stage(patience(t), id, c), code)
			remove()
			if _, staged := b.driver.Staged()[id]; staged != after {
				t.Errorf("%v, after its effect %v: staged %v", code, after, staged)
			}
			b.must(b.unstage(patience(t), id))
		}
	}
}

func TestKilledDuringEachCall(t *testing.T) {
	c := mountCapability("")
	for _, after := range []bool{false, true} {
		b := newBench(t, staged())
		b.add("v1", csitest.Directory)
		// The steps begin where the one before has succeeded.
		for method, step := range steps(c) {
			remove := b.driver.Inject(csitest.Fault{Match: csitest.Method(method), After: after, Hook: b.driver.Kill})
			b.wantCode(step(b), codes.Unavailable)
			remove()
			if _, err := os.Lstat(b.socket); err != nil {
				t.Errorf("the killed driver's socket is gone: %v", err)
			}
			b.wantCode(step(b), codes.Unavailable)
			effect := len(b.driver.Staged())*2 + len(b.driver.Published())
			if want := map[string][2]int{"NodeStageVolume": {0, 2}, "NodePublishVolume": {2, 3}, "NodeUnpublishVolume": {3, 2}, "NodeUnstageVolume": {2, 0}}[method]; effect != want[map[bool]int{false: 0, true: 1}[after]] {
				t.Errorf("%s, killed after its effect %v: staged %v, published %v", method, after, b.driver.Staged(), b.driver.Published())
			}
			b.start(method + ".sock")
			b.must(step(b))
		}
		b.wantViolations(0)
	}
}

// steps are a volume's life, call by call.
func steps(c *csi.VolumeCapability) func(yield func(string, func(*bench) error) bool) {
	return func(yield func(string, func(*bench) error) bool) {
		_ = yield("NodeStageVolume", func(b *bench) error { return b.stage(patience(b.t), "v1", c) }) &&
			yield("NodePublishVolume", func(b *bench) error { return b.publish(patience(b.t), "v1", c) }) &&
			yield("NodeUnpublishVolume", func(b *bench) error { return b.unpublish(patience(b.t), "v1") }) &&
			yield("NodeUnstageVolume", func(b *bench) error { return b.unstage(patience(b.t), "v1") })
	}
}

func TestAnotherLife(t *testing.T) {
	b := newBench(t, staged())
	ctx := patience(t)
	if err := b.driver.Start(b.socket); err == nil {
		t.Error("it is started twice")
	}
	b.must(b.driver.Stop(), b.driver.Stop())
	if _, err := os.Lstat(b.socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket of a stopped driver: %v", err)
	}
	b.driver.Configure(func(c *csitest.Config) {
		c.Version = "2.0.0"
		c.Capabilities = csitest.Capabilities{}
	})
	b.start("other.sock")
	info, err := b.identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil || info.VendorVersion != "2.0.0" || info.Name != csitest.DefaultName {
		t.Errorf("%v, %v", info, err)
	}
	can, err := b.node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil || len(can.Capabilities) > 0 {
		t.Errorf("%v, %v", can, err)
	}
	b.add("v1", csitest.Directory)
	b.wantCode(b.stage(ctx, "v1", mountCapability("")), codes.Unimplemented)
	b.must(b.publish(ctx, "v1", mountCapability("")), b.unpublish(ctx, "v1"))
	_, err = b.controller.CreateVolume(ctx, &csi.CreateVolumeRequest{})
	b.wantCode(err, codes.Unimplemented)
}

func TestCallsAreKept(t *testing.T) {
	b := newBench(t, staged())
	b.add("v1", csitest.Directory)
	ctx, c := patience(t), mountCapability("")
	_, err := b.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "v1", StagingTargetPath: b.staging(true), VolumeCapability: c, Secrets: map[string]string{"password": "canary"}})
	b.must(err, b.publish(ctx, "v1", c), b.unpublish(ctx, "v1"))
	var texts []string
	for _, call := range b.driver.Calls() {
		texts = append(texts, call.String())
	}
	want := []string{"NodeStageVolume v1 at " + b.staging(false), "NodePublishVolume v1 at " + b.target(), "NodeUnpublishVolume v1 at " + b.target()}
	if !slices.Equal(texts, want) {
		t.Errorf("calls %q, want %q", texts, want)
	}
	request := b.driver.CallsOf("NodeStageVolume")[0].Request.(*csi.NodeStageVolumeRequest)
	if request.Secrets["password"] != "canary" {
		t.Errorf("the request has secrets %v", request.Secrets)
	}
	b.driver.ResetCalls()
	if calls := b.driver.Calls(); len(calls) > 0 {
		t.Errorf("calls %v", calls)
	}
}

// What is mounted in a volume belongs to another user: deleting the volume leaves it.
func TestDeletionLeavesMounts(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		b := newBench(t, staged())
		inside := testtool.MkdirAll(t, b.add("v1", csitest.Directory), "inside")
		mounttest.MountTmpfs(t, inside)
		file := testtool.WriteFile(t, "data", inside, "file")
		_, err := b.controller.DeleteVolume(patience(t), &csi.DeleteVolumeRequest{VolumeId: "v1"})
		b.wantCode(err, codes.Internal)
		if data, err := os.ReadFile(file); string(data) != "data" {
			t.Errorf("the file holds %q, %v", data, err)
		}
	})
}

// A caller that tells nothing of the pod of an inline volume is told what is missing, and no volume
// is made.
func TestInlineVolumeWithoutPodInfo(t *testing.T) {
	b := newBench(t, staged())
	_, err := b.node.NodePublishVolume(patience(t), &csi.NodePublishVolumeRequest{VolumeId: "csi-1", TargetPath: b.target(), VolumeCapability: mountCapability("")})
	if b.wantCode(err, codes.InvalidArgument); !strings.Contains(err.Error(), "podInfoOnMount") {
		t.Error(err)
	}
	if ids, err := b.driver.Volumes(); len(ids) > 0 || err != nil {
		t.Errorf("there are the volumes %q, %v", ids, err)
	}
}
