package controller_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/plugins/csi/controller"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// node is a node's plugin on a root directory, which is in another process maybe.
type node struct {
	b      *bench
	host   *fakehost.Host
	plugin *csi.Plugin
	spec   *volume.Spec
}

// detaching is a bench whose plugin detaches, and nodes below its root directory and another.
func detaching(t *testing.T, c csitest.Config, spec *volume.Spec) (b *bench, own, other *node) {
	t.Helper()
	c.Capabilities.Attach = true
	b = newBench(t, c)
	shared := filepath.Join(t.TempDir(), "csi")
	b.must(b.plugin.Close())
	var err error
	b.plugin, err = controller.New(controller.Config{Drivers: map[string]string{driverName: b.socket}, StagedDir: shared})
	b.must(err)
	t.Cleanup(func() { b.plugin.Close() })
	b.must(b.plugin.Init(b.host))
	second := fakehost.New(t)
	second.Mounter = b.host.GetMounter()
	nodes := make([]*node, 2)
	for i, host := range []*fakehost.Host{b.host, second} {
		dir := shared
		if i == 0 {
			dir = "" // what is below one root directory needs none
		}
		p, err := csi.New(csi.Config{Drivers: map[string]string{driverName: b.socket}, StagedDir: dir})
		b.must(err)
		t.Cleanup(func() { p.Close() })
		b.must(p.Init(host))
		nodes[i] = &node{b, host, p, spec}
	}
	b.must(attach(t.Context(), b.plugin, spec))
	return b, nodes[0], nodes[1]
}

func (n *node) stage() error {
	if n.spec.IsBlock() {
		m, err := n.plugin.NewBlockVolumeMapper(n.spec, user())
		if err != nil {
			return err
		}
		_, err = m.SetUpDevice(n.b.t.Context())
		return err
	}
	m, err := n.plugin.NewDeviceMounter()
	if err != nil {
		return err
	}
	path, err := m.GetDeviceMountPath(n.spec)
	if err != nil {
		return err
	}
	return m.MountDevice(n.b.t.Context(), n.spec, "", path, volume.DeviceMounterArgs{})
}

func (n *node) unstage() error {
	if n.spec.IsBlock() {
		u, err := n.plugin.NewBlockVolumeUnmapper(n.spec.Name(), "u1")
		if err != nil {
			return err
		}
		return u.TearDownDevice(n.b.t.Context(), "", "")
	}
	m, err := n.plugin.NewDeviceMounter()
	if err != nil {
		return err
	}
	path, err := m.GetDeviceMountPath(n.spec)
	if err != nil {
		return err
	}
	u, err := n.plugin.NewDeviceUnmounter()
	if err != nil {
		return err
	}
	return u.UnmountDevice(n.b.t.Context(), path)
}

func (b *bench) detach(s *volume.Spec) error {
	return b.plugin.DetachSpec(b.t.Context(), s, fakehost.NodeName)
}

func user() *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "u1"}}
}

// volumesToDetach are the file system and the block volume.
func volumesToDetach() map[string]*volume.Spec {
	block := pvSpec()
	block.PersistentVolume.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
	block.PersistentVolume.Spec.CSI.VolumeAttributes = map[string]string{"disk": string(csitest.File)}
	return map[string]*volume.Spec{"file system": pvSpec(), "block": block}
}

// While the driver detaches, no node of the machine stages.
func TestNothingIsStagedWhileItIsDetached(t *testing.T) {
	for name, spec := range volumesToDetach() {
		t.Run(name, func(t *testing.T) {
			b, own, other := detaching(t, everything(), spec)
			again, err := controller.New(controller.Config{Drivers: map[string]string{driverName: b.socket}})
			b.must(err)
			defer again.Close()
			b.must(again.Init(b.host))
			tried := 0
			try := func() {
				for _, n := range []*node{own, other} {
					tried++
					if err := n.stage(); err == nil || volume.IsUncertain(err) {
						t.Errorf("staged: %v", err)
					}
				}
				if err := again.DetachSpec(t.Context(), spec, fakehost.NodeName); !errors.Is(err, volume.ErrInUse) {
					t.Errorf("detached twice at once: %v", err)
				}
			}
			b.driver.Inject(csitest.Fault{Match: csitest.Method("ControllerUnpublishVolume"), Nth: 1, Hook: try})
			b.must(b.detach(spec))
			if calls := b.driver.CallsOf("NodeStageVolume"); len(calls) > 0 || tried != 2 || len(b.driver.Attached()) > 0 {
				t.Errorf("%d tries, calls %v, attached %v", tried, calls, b.driver.Attached())
			}
			// And after it, all goes on.
			b.must(attach(t.Context(), b.plugin, spec))
			for _, n := range []*node{own, other} {
				b.must(n.stage())
				b.must(n.unstage())
			}
			b.must(b.detach(spec))
		})
	}
}

// While a node stages or unstages, below whichever root directory, nothing is detached; nor is
// what is staged.
func TestNothingIsDetachedWhileItIsStaged(t *testing.T) {
	for name, spec := range volumesToDetach() {
		for i, where := range []string{"own", "other"} {
			t.Run(name+"/"+where, func(t *testing.T) {
				b, own, other := detaching(t, everything(), spec)
				n := []*node{own, other}[i]
				tried := 0
				try := func() {
					tried++
					if err := b.detach(spec); !errors.Is(err, volume.ErrInUse) || volume.IsUncertain(err) {
						t.Errorf("detached: %v", err)
					}
				}
				for _, method := range []string{"NodeStageVolume", "NodeUnstageVolume"} {
					b.driver.Inject(csitest.Fault{Match: csitest.Method(method), Hook: try}, csitest.Fault{Match: csitest.Method(method), Hook: try, After: true})
				}
				b.must(n.stage())
				try()
				b.must(n.unstage())
				if tried != 5 || len(b.driver.CallsOf("ControllerUnpublishVolume")) > 0 {
					t.Errorf("%d tries, %d calls", tried, len(b.driver.CallsOf("ControllerUnpublishVolume")))
				}
				b.must(b.detach(spec))
			})
		}
	}
}

// attachments answers a node that looks whether the volume is attached.
type attachments func() (*storagev1.VolumeAttachment, error)

func (f attachments) GetVolumeAttachment(context.Context, string) (*storagev1.VolumeAttachment, error) {
	return f()
}

// A node that has found the volume attached stages it; from then on it is not detached, though
// nothing is staged yet.
func TestWhatANodeFoundAttachedIsNotDetached(t *testing.T) {
	b, own, _ := detaching(t, everything(), pvSpec())
	asked := 0
	own.host.Attachments = attachments(func() (*storagev1.VolumeAttachment, error) {
		asked++
		if err := b.detach(pvSpec()); !errors.Is(err, volume.ErrInUse) {
			t.Errorf("detached: %v", err)
		}
		return &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{Attached: true}}, nil
	})
	b.must(own.stage())
	if asked != 1 || len(b.driver.Attached()) != 1 {
		t.Errorf("asked %d times, attached %v", asked, b.driver.Attached())
	}
	b.must(own.unstage())
}

// One that finds it detached has left nothing that keeps it from being detached.
func TestARefusedStagingLeavesNothing(t *testing.T) {
	b, own, _ := detaching(t, everything(), pvSpec())
	own.host.Attachments = attachments(func() (*storagev1.VolumeAttachment, error) { return nil, volume.ErrNotFound })
	if err := own.stage(); !errors.Is(err, csi.ErrNotAttached) || volume.IsUncertain(err) {
		t.Errorf("err = %v", err)
	}
	b.must(b.detach(pvSpec()))
	for _, dir := range []string{"podvol/csi", "plugins/kubernetes.io/csi/" + driverName} {
		if _, err := os.Lstat(filepath.Join(b.host.RootDir, dir)); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
}

// A driver that stages nothing publishes block volumes, which counts.
func TestNothingIsPublishedWhileItIsDetached(t *testing.T) {
	c := everything()
	c.Capabilities.Stage = false
	spec := volumesToDetach()["block"]
	b, own, other := detaching(t, c, spec)
	for _, n := range []*node{own, other} {
		m, err := n.plugin.NewBlockVolumeMapper(spec, user())
		b.must(err)
		remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("ControllerUnpublishVolume"), Hook: func() {
			if _, err := m.MapPodDevice(t.Context()); err == nil || volume.IsUncertain(err) {
				t.Errorf("published: %v", err)
			}
		}})
		b.must(b.detach(spec))
		remove()
		b.must(attach(t.Context(), b.plugin, spec))
		b.must(n.unstage())
	}
	if calls := b.driver.CallsOf("NodePublishVolume"); len(calls) > 0 {
		t.Errorf("calls %v", calls)
	}
}
