package csi_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// served is a driver without delay on a socket, whose mounts are fakes.
func served(t testing.TB) (socket string, mounter *fakemount.Mounter) {
	t.Helper()
	mounter = fakemount.New()
	driver := csitest.New(csitest.Config{Dir: t.TempDir(), Mounter: mounter, CreateOnUse: true, Capabilities: csitest.AllCapabilities()})
	socket = filepath.Join(csitest.SocketDir(t), "s")
	if err := driver.Start(socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		driver.Close()
		mounter.Close()
	})
	return socket, mounter
}

// The manager costs less than a millisecond a volume over the calls themselves, which a client
// makes beside it: for set-up and for teardown. Its records are in memory, since the time to sync
// them is the disk's. The best of many rounds counts, by the processor's time, so that what else
// the machine does counts less. The clock's time is told beside.
func TestFiguresOverBareCalls(t *testing.T) {
	_, asserted := figures.Slack(t)
	rounds := 20
	if asserted {
		rounds = 300
	}
	figures.InMemory(t)
	socket, _ := served(t)
	conn, err := csitest.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client, dir := spec.NewNodeClient(conn), t.TempDir()
	managerSocket, managerMounter := served(t)
	node, pod := managed(t, managerSocket, managerMounter), claiming()
	steps := []struct {
		name          string
		bare, manager func() error
	}{
		{"set-up", func() error { return bareSetUp(t.Context(), client, dir, "h1") },
			func() error { _, err := node.SetUpPod(t.Context(), pod); return err }},
		{"teardown", func() error { return bareTearDown(t.Context(), client, dir, "h1") },
			func() error { return node.TearDownPod(t.Context(), pod.UID) }},
	}
	best, clock := make(map[string]time.Duration), make(map[string]time.Duration)
	for range rounds {
		for _, s := range steps {
			for who, do := range map[string]func() error{"bare": s.bare, "manager": s.manager} {
				key, begin, before := who+" "+s.name, time.Now(), used(t)
				if err := do(); err != nil {
					t.Fatalf("%s: %v", key, err)
				}
				keepLeast(best, key, used(t)-before)
				keepLeast(clock, key, time.Since(begin))
			}
		}
	}
	for _, s := range steps {
		bare, manager := "bare "+s.name, "manager "+s.name
		figures.Report(t, figures.Times("the manager's "+s.name+" of a CSI volume", figures.CPU, best[manager], "bare calls", best[bare], 0),
			figures.Row{What: "what the manager's " + s.name + " takes more than the calls", Unit: figures.CPU, Ours: (best[manager] - best[bare]).Seconds(), Limit: 1e-3},
			figures.Times("the manager's "+s.name+" of a CSI volume", figures.Wall, clock[manager], "bare calls", clock[bare], 0))
	}
}

// keepLeast keeps the least value of a key.
func keepLeast(least map[string]time.Duration, key string, value time.Duration) {
	if before, known := least[key]; !known || value < before {
		least[key] = value
	}
}

// bareLife makes the calls of a volume's life. It may be called concurrently.
func bareLife(t testing.TB, node spec.NodeClient, dir, id string) {
	t.Helper()
	err := bareSetUp(t.Context(), node, dir, id)
	if err == nil {
		err = bareTearDown(t.Context(), node, dir, id)
	}
	if err != nil {
		t.Error(err)
	}
}

func bareSetUp(ctx context.Context, node spec.NodeClient, dir, id string) error {
	staging := filepath.Join(dir, "staging")
	c := &spec.VolumeCapability{AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	err := os.MkdirAll(staging, 0o750)
	if err == nil {
		_, err = node.NodeStageVolume(ctx, &spec.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: staging, VolumeCapability: c})
	}
	if err == nil {
		_, err = node.NodePublishVolume(ctx, &spec.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, TargetPath: filepath.Join(dir, "target"), VolumeCapability: c})
	}
	return err
}

func bareTearDown(ctx context.Context, node spec.NodeClient, dir, id string) error {
	_, err := node.NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: filepath.Join(dir, "target")})
	if err == nil {
		_, err = node.NodeUnstageVolume(ctx, &spec.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: filepath.Join(dir, "staging")})
	}
	return err
}

// managed is a running manager with the claim of pv1.
func managed(t testing.TB, socket string, mounter *fakemount.Mounter) *volumemanager.Manager {
	t.Helper()
	p, err := csi.New(csi.Config{Drivers: map[string]string{driverName: socket}})
	if err != nil {
		t.Fatal(err)
	}
	store := objects.NewStore()
	if err := store.Load(t.Context(), 0, boundClaim()...); err != nil {
		t.Fatal(err)
	}
	node, err := volumemanager.New(volumemanager.Config{RootDir: t.TempDir(), NodeName: "node1", Objects: store, Plugins: []volume.VolumePlugin{p}, Mounter: mounter})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
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
