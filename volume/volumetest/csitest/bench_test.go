package csitest_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// bench is a driver, and a caller of it.
type bench struct {
	t          *testing.T
	driver     *csitest.Driver
	dir        string
	socket     string
	node       csi.NodeClient
	controller csi.ControllerClient
	identity   csi.IdentityClient
}

// newBench starts a driver whose Dir is set; without a mounter it has a fake one.
func newBench(t *testing.T, c csitest.Config) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir()}
	c.Dir = filepath.Join(b.dir, "storage")
	if c.Mounter == nil {
		fake := fakemount.New()
		fake.KeepIn(t.TempDir())
		t.Cleanup(func() {
			if err := fake.Close(); err != nil {
				t.Error(err)
			}
		})
		c.Mounter = fake
	}
	b.driver = csitest.New(c)
	t.Cleanup(func() {
		if err := b.driver.Close(); err != nil {
			t.Error(err)
		}
	})
	b.start("csi.sock")
	return b
}

// start starts the driver and connects to it. The directory of the socket is short, as a
// socket's path must be.
func (b *bench) start(name string) {
	b.t.Helper()
	b.socket = filepath.Join(csitest.SocketDir(b.t), name)
	b.must(b.driver.Start(b.socket))
	b.connect()
}

// furtherNode is the same driver on another node.
func (b *bench) furtherNode(id string) *bench {
	b.t.Helper()
	other := &bench{t: b.t, driver: b.driver, dir: b.t.TempDir(), socket: filepath.Join(csitest.SocketDir(b.t), "s")}
	other.must(b.driver.StartNode(id, other.socket))
	other.connect()
	return other
}

func (b *bench) connect() {
	b.t.Helper()
	conn, err := csitest.Dial(b.socket)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { conn.Close() })
	b.node, b.controller, b.identity = csi.NewNodeClient(conn), csi.NewControllerClient(conn), csi.NewIdentityClient(conn)
}

func (b *bench) staging(make bool) string {
	path := filepath.Join(b.dir, "staging")
	if make {
		if err := os.MkdirAll(path, 0o750); err != nil {
			b.t.Fatal(err)
		}
	}
	return path
}

func (b *bench) target() string { return filepath.Join(b.dir, "target") }

func mountCapability(fsType string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType}},
	}
}

func blockCapability() *csi.VolumeCapability {
	c := mountCapability("")
	c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	return c
}

func (b *bench) stage(ctx context.Context, id string, c *csi.VolumeCapability) error {
	_, err := b.node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: b.staging(true), VolumeCapability: c})
	return err
}

func (b *bench) publish(ctx context.Context, id string, c *csi.VolumeCapability) error {
	_, err := b.node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: b.staging(false), TargetPath: b.target(), VolumeCapability: c})
	return err
}

func (b *bench) unpublish(ctx context.Context, id string) error {
	_, err := b.node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: b.target()})
	return err
}

func (b *bench) unstage(ctx context.Context, id string) error {
	_, err := b.node.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: b.staging(false)})
	return err
}

// must fails the test at the first error.
func (b *bench) must(errs ...error) {
	b.t.Helper()
	for i, err := range errs {
		if err != nil {
			b.t.Fatalf("step %d: %v", i, err)
		}
	}
}

func (b *bench) wantCode(err error, want codes.Code) {
	b.t.Helper()
	if got := status.Code(err); got != want {
		b.t.Errorf("%v, want %v", err, want)
	}
}

func (b *bench) wantViolations(n int) {
	b.t.Helper()
	if got := b.driver.Violations(); len(got) != n {
		b.t.Errorf("%d violations, want %d: %q", len(got), n, got)
	}
}

func (b *bench) add(id string, disk csitest.Disk) string {
	b.t.Helper()
	data, err := b.driver.AddVolume(id, 0, disk)
	if err != nil {
		b.t.Fatal(err)
	}
	return data
}

// patience bounds calls of which the test expects that they end.
func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func staged() csitest.Config {
	return csitest.Config{Capabilities: csitest.AllCapabilities()}
}
