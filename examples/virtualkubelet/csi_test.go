package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/podvol/podvol/examples/virtualkubelet/csidrivers"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// attachingCluster is a real API server with a claim of a volume that must be attached. The
// test is its attach/detach controller.
type attachingCluster struct {
	*world
	admin  kubernetes.Interface
	driver *csitest.Driver
}

func newAttachingCluster(t *testing.T, s *apiserver.Server) *attachingCluster {
	mounter := fakemount.New()
	t.Cleanup(func() { mounter.Close() })
	dir, err := os.MkdirTemp("", "vk") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	c := &attachingCluster{admin: clientsetOf(t, s.Admin(t)), driver: csitest.New(csitest.Config{
		Dir: t.TempDir(), Mounter: mounter, CreateOnUse: true, NodeID: "node1", Capabilities: csitest.AllCapabilities(), MaxVolumesPerNode: 7})}
	c.world = &world{t: t, config: config{api: clientsetOf(t, s.Kubeconfig(t, "system:node:node1", "system:nodes")), name: "node1", dir: dir,
		address: "192.0.2.1", hold: true, csi: true, mounter: mounter, log: log}}
	registry, socket := filepath.Join(dir, "volumes", "plugins_registry"), filepath.Join(dir, "csi.sock")
	registrar := &csitest.Registrar{Name: csitest.DefaultName, Endpoint: socket}
	c.must(os.MkdirAll(registry, 0o750), c.driver.Start(socket), registrar.Start(filepath.Join(registry, "driver-reg.sock")))
	t.Cleanup(func() {
		c.stop()
		c.must(registrar.Stop(), c.driver.Close())
	})
	return c
}

func (c *attachingCluster) must(errs ...error) {
	c.t.Helper()
	for _, err := range errs {
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// fill makes all objects but the pod.
func (c *attachingCluster) fill(ctx context.Context) {
	c.t.Helper()
	core := c.admin.CoreV1()
	_, err := core.Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	c.must(err)
	_, err = core.ServiceAccounts("shop").Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	c.must(err)
	_, err = c.admin.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: csitest.DefaultName}}, metav1.CreateOptions{})
	c.must(err)
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	claim, err := core.PersistentVolumeClaims("shop").Create(ctx, &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec: v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: new(""), VolumeName: "pv1", Resources: v1.VolumeResourceRequirements{Requests: size}}}, metav1.CreateOptions{})
	c.must(err)
	_, err = core.PersistentVolumes().Create(ctx, &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv1"},
		Spec: v1.PersistentVolumeSpec{Capacity: size, AccessModes: claim.Spec.AccessModes, ClaimRef: &v1.ObjectReference{Namespace: "shop", Name: "data", UID: claim.UID},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: csitest.DefaultName, VolumeHandle: "h1"}}}}, metav1.CreateOptions{})
	c.must(err)
	claim.Status.Phase = v1.ClaimBound
	_, err = core.PersistentVolumeClaims("shop").UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	c.must(err)
}

// attach is what the attach/detach controller and the driver's attacher do. Without
// metadata it is undone.
func (c *attachingCluster) attach(ctx context.Context, metadata map[string]string) {
	c.t.Helper()
	var attached []v1.AttachedVolume
	if metadata != nil {
		c.attachment(ctx, storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: metadata})
		attached = []v1.AttachedVolume{{Name: csiVolume, DevicePath: attachmentName()}}
	}
	c.must(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node := c.node()
		node.Status.VolumesAttached = attached
		_, err := c.admin.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	}))
	if metadata == nil {
		c.must(c.admin.StorageV1().VolumeAttachments().Delete(ctx, attachmentName(), metav1.DeleteOptions{}))
	}
}

func attachmentName() string {
	sum := sha256.Sum256([]byte("h1" + csitest.DefaultName + "node1"))
	return "csi-" + hex.EncodeToString(sum[:])
}

// attachment makes the VolumeAttachment with a status.
func (c *attachingCluster) attachment(ctx context.Context, status storagev1.VolumeAttachmentStatus) {
	c.t.Helper()
	all := c.admin.StorageV1().VolumeAttachments()
	a, err := all.Create(ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachmentName()}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: csitest.DefaultName, NodeName: "node1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv1")}}}, metav1.CreateOptions{})
	c.must(err)
	a.Status = status
	_, err = all.UpdateStatus(ctx, a, metav1.UpdateOptions{})
	c.must(err)
}

const csiVolume = v1.UniqueVolumeName("kubernetes.io/csi/" + csitest.DefaultName + "^h1")

// node is the node's object; an empty one where there is none yet.
func (c *attachingCluster) node() *v1.Node {
	node, err := c.admin.CoreV1().Nodes().Get(context.Background(), "node1", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		c.t.Fatal(err)
	}
	return node
}

func (c *attachingCluster) isInUse() bool {
	return slices.Contains(c.node().Status.VolumesInUse, csiVolume)
}

// begin makes the pod, and waits until its volume is reported in use.
func (c *attachingCluster) begin(ctx context.Context) {
	c.t.Helper()
	web := pod("web", "", v1.Volume{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}})
	web.UID, web.Spec.ServiceAccountName = "", "default"
	_, err := c.admin.CoreV1().Pods("shop").Create(ctx, web, metav1.CreateOptions{})
	c.must(err)
	c.eventually("the volume is reported in use", c.isInUse)
}

// limit is what the CSINode says of the driver's volumes; 0: it does not have the driver.
func (c *attachingCluster) limit(ctx context.Context) int32 {
	info, err := c.admin.StorageV1().CSINodes().Get(ctx, "node1", metav1.GetOptions{})
	if err != nil || len(info.Spec.Drivers) != 1 {
		return 0
	}
	return *info.Spec.Drivers[0].Allocatable.Count
}

// A pod whose volume cannot be attached, since the node is full (gRPC code 8), is rejected as by the kubelet,
// and the scheduler learns the driver's limit at once.
func TestNodeWithoutRoomForAVolume(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		c, ctx := newAttachingCluster(t, s), t.Context()
		c.fill(ctx)
		c.start()
		c.eventually("the driver is in the CSINode", func() bool { return c.limit(ctx) == 7 })
		c.begin(ctx)
		c.driver.Configure(func(c *csitest.Config) { c.MaxVolumesPerNode = 3 })
		c.attachment(ctx, storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "3 of 3 slots are taken", ErrorCode: new(int32(8))}})
		c.eventually("the pod is rejected", func() bool {
			p, err := c.admin.CoreV1().Pods("shop").Get(ctx, "web", metav1.GetOptions{})
			return err == nil && p.Status.Phase == v1.PodFailed && p.Status.Reason == "VolumeAttachmentLimitExceeded" && strings.Contains(p.Status.Message, "3 of 3 slots")
		})
		c.eventually("the CSINode has the new limit", func() bool { return c.limit(ctx) == 3 })
		c.eventually("the volume is in use no more", func() bool { return !c.isInUse() })
		if calls := c.driver.CallsOf("NodeStageVolume"); len(calls) > 0 {
			t.Error("it is staged, and was never attached")
		}
		c.stop()
	})
}

// The volume of a driver that attaches, from the driver's registration to the detachment, with
// a restart in between, and with what a node's identity may do and no more.
func TestAttachedVolumeOfACSIDriver(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		c, ctx := newAttachingCluster(t, s), t.Context()
		c.fill(ctx)
		c.start()
		c.eventually("the driver is in the CSINode", func() bool { return c.limit(ctx) == 7 })
		info, err := c.admin.StorageV1().CSINodes().Get(ctx, "node1", metav1.GetOptions{})
		if got := info.Annotations["storage.alpha.kubernetes.io/migrated-plugins"]; err != nil || !strings.Contains(got, "kubernetes.io/gce-pd") {
			t.Errorf("the node is said to translate %q, %v", got, err)
		}
		if got := c.node().Annotations; got[csidrivers.AttachAnnotation] != "true" || got["csi.volume.kubernetes.io/nodeid"] == "" {
			t.Errorf("the node's annotations are %v", got)
		}
		c.begin(ctx)
		if calls := c.driver.CallsOf("NodeStageVolume"); len(calls) > 0 {
			t.Error("it is staged before it is attached")
		}
		c.attach(ctx, map[string]string{"slot": "7"})
		c.eventually("the pod runs", func() bool {
			p, err := c.admin.CoreV1().Pods("shop").Get(ctx, "web", metav1.GetOptions{})
			return err == nil && p.Status.Phase == v1.PodRunning
		})
		staged := c.driver.CallsOf("NodeStageVolume")[0].Request.(interface{ GetPublishContext() map[string]string })
		if got := staged.GetPublishContext(); got["slot"] != "7" {
			t.Errorf("it is staged with %v", got)
		}
		c.stop()
		if !c.isInUse() {
			t.Error("the volume is not in use after the node's end")
		}
		c.start()
		c.must(c.admin.CoreV1().Pods("shop").Delete(ctx, "web", metav1.DeleteOptions{}))
		c.eventually("the volume is in use no more", func() bool { return !c.isInUse() })
		if staged, published := c.driver.Staged(), c.driver.Published(); len(staged)+len(published) > 0 {
			t.Errorf("in use no more, with staged %v and published %v", staged, published)
		}
		c.attach(ctx, nil)
		c.stop()

		c.config.csi = false
		c.start()
		c.eventually("the node has no drivers any more", func() bool {
			info, err := c.admin.StorageV1().CSINodes().Get(ctx, "node1", metav1.GetOptions{})
			return err == nil && len(info.Spec.Drivers) == 0 && c.node().Annotations["csi.volume.kubernetes.io/nodeid"] == ""
		})
		c.stop()
	})
}
