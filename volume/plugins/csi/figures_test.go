package csi_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// served is a driver without delay on a socket, whose mounts are fakes.
func served(b *testing.B) (socket string, mounter *fakemount.Mounter) {
	b.Helper()
	mounter = fakemount.New()
	driver := csitest.New(csitest.Config{Dir: b.TempDir(), Mounter: mounter, CreateOnUse: true, Capabilities: csitest.AllCapabilities()})
	socket = filepath.Join(csitest.SocketDir(b), "s")
	if err := driver.Start(socket); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		driver.Close()
		mounter.Close()
	})
	return socket, mounter
}

// measure reports the processor time of a life beside its wall time.
func measure(b *testing.B, life func()) {
	b.Helper()
	life() // connects
	before := used(b)
	for b.Loop() {
		life()
	}
	b.ReportMetric(float64(used(b)-before)/float64(b.N), "cpu-ns/op")
}

// A volume's life on a node, set-up and teardown: the four calls alone, and the manager's
// way to them, which syncs its records.
func BenchmarkLife(b *testing.B) {
	b.Run("calls", func(b *testing.B) {
		socket, _ := served(b)
		conn, err := csitest.Dial(socket)
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		node, dir := spec.NewNodeClient(conn), b.TempDir()
		measure(b, func() { bareLife(b, node, dir, "h1") })
	})
	b.Run("manager", func(b *testing.B) {
		socket, mounter := served(b)
		node := managed(b, socket, mounter)
		pod := claiming()
		measure(b, func() {
			if _, err := node.SetUpPod(b.Context(), pod); err != nil {
				b.Fatal(err)
			}
			if err := node.TearDownPod(b.Context(), pod.UID); err != nil {
				b.Fatal(err)
			}
		})
	})
}

// bareLife makes the calls of a volume's life. It may be called concurrently.
func bareLife(b testing.TB, node spec.NodeClient, dir, id string) {
	b.Helper()
	ctx, staging, target := b.Context(), filepath.Join(dir, "staging"), filepath.Join(dir, "target")
	c := &spec.VolumeCapability{AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	err := os.MkdirAll(staging, 0o750)
	if err == nil {
		_, err = node.NodeStageVolume(ctx, &spec.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: c})
	}
	if err == nil {
		_, err = node.NodePublishVolume(ctx, &spec.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: c})
	}
	if err == nil {
		_, err = node.NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
	}
	if err == nil {
		_, err = node.NodeUnstageVolume(ctx, &spec.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
	}
	if err != nil {
		b.Error(err)
	}
}

// managed is a running manager with the claim of pv1.
func managed(b *testing.B, socket string, mounter *fakemount.Mounter) *volumemanager.Manager {
	b.Helper()
	p, err := csi.New(csi.Config{Drivers: map[string]string{driverName: socket}})
	if err != nil {
		b.Fatal(err)
	}
	store := objects.NewStore()
	if err := store.Load(b.Context(), 0, boundClaim()...); err != nil {
		b.Fatal(err)
	}
	node, err := volumemanager.New(volumemanager.Config{RootDir: b.TempDir(), NodeName: "node1", Objects: store, Plugins: []volume.VolumePlugin{p}, Mounter: mounter})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
		p.Close()
	})
	return node
}

// boundClaim is the claim "data" in the namespace "shop", with its volume pv1.
func boundClaim() []metav1.Object {
	pv := pvSpec().PersistentVolume
	pv.UID, pv.Status.Phase = "pv-uid", v1.VolumeBound
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "shop", Name: "data", UID: "claim-uid"}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "claim-uid"}}
	claim.Spec.VolumeName, claim.Status.Phase = "pv1", v1.ClaimBound
	return []metav1.Object{pv, claim}
}

// claiming is a pod with that claim.
func claiming() *v1.Pod {
	p := pod("u1")
	p.Spec.Containers = []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}}
	p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	return p
}
