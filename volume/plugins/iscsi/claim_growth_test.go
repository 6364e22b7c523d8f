package iscsi_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// A larger claim waits for the administrator, who grows the disk on its target and then the
// PersistentVolume, and for the node: while a pod has the disk, before the next pod gets it, and
// as a device. What the node sees as too small yet is tried again.
func TestALargerClaimGrowsFromEndToEnd(t *testing.T) {
	const waits, node = "1Gi 5Gi ControllerResizeInProgress Resizing", "1Gi 5Gi NodeResizePending FileSystemResizePending"
	for name, tc := range map[string]struct {
		block, before bool // before the pod
		small         bool // the disk is, when the PersistentVolume is enlarged
		resized       int  // file systems
	}{
		"mounted":                        {resized: 1},
		"at the next mount":              {before: true, resized: 1},
		"device":                         {block: true},
		"device before its pod":          {block: true, before: true},
		"disk enlarged too late":         {small: true, resized: 1},
		"device enlarged too late":       {small: true, block: true},
		"enlarged too late for a mount":  {small: true, before: true, resized: 1},
		"enlarged too late for a device": {small: true, before: true, block: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGrowing(t, tc.block)
				if !tc.before {
					g.setUp()
				}
				g.ask("5Gi")
				g.want(waits)
				g.wantTold("ExternalExpanding")
				if !tc.small {
					g.grow(5 << 30)
				}
				g.enlarge("5Gi")
				if tc.before {
					g.want(node)
					if tc.small {
						g.fails("has 1073741824 bytes, and 5368709120 are asked for")
					} else {
						g.setUp()
					}
				} else if tc.small {
					g.wantTold("has 1073741824 bytes, and 5368709120 are asked for")
				}
				if tc.small {
					g.grow(5 << 30)
					time.Sleep(time.Hour)
				}
				g.want("5Gi 5Gi")
				g.wantTold("FileSystemResizeSuccessful")
				if g.plugin.binder.resized != tc.resized {
					t.Errorf("the file system was made larger %d times, want %d", g.plugin.binder.resized, tc.resized)
				}
				g.setUp()
				g.tearDown()
			})
		})
	}
}

// growing is a cluster of the claims' controller and one node, which have a disk of 1Gi.
type growing struct {
	t       *testing.T
	store   *objects.Store
	disk    *targets
	plugin  *hosted
	manager *volumemanager.Manager
	pod     *v1.Pod

	mu   sync.Mutex
	told []string
}

func newGrowing(t *testing.T, block bool) *growing {
	dir, fake := t.TempDir(), fakemount.New()
	t.Cleanup(func() {
		if err := fake.Close(); err != nil {
			t.Error(err)
		}
	})
	g := &growing{t: t, disk: newTargets(), pod: pvbuild.PodOf("data")}
	g.disk.size = 1 << 30
	g.plugin = newHosted(g.disk)
	mode, place := v1.PersistentVolumeFilesystem, filepath.Join(dir, "disk")
	if block {
		mode = v1.PersistentVolumeBlock
		g.pod.Spec.Containers = []v1.Container{{Name: "c", VolumeDevices: []v1.VolumeDevice{{Name: "data", DevicePath: "/dev/data"}}}}
		g.must(os.WriteFile(place, nil, 0o600))
	} else {
		g.must(os.Mkdir(place, 0o700))
	}
	pv := pvbuild.NewPV("pv", "1Gi", pvbuild.Class("grows"), pvbuild.OfMode(mode))
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{TargetPortal: "192.0.2.1", IQN: iqnOf(place), Lun: 3}}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "grows"}, Provisioner: "kubernetes.io/no-provisioner", AllowVolumeExpansion: new(true)}
	g.store = pvbuild.StoreOf(t, class, pv, pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("grows"), pvbuild.WantsMode(mode)))

	known := &volume.VolumePluginMgr{}
	g.must(known.InitPlugins([]volume.VolumePlugin{newHosted(newTargets())}, &volume.Host{RootDir: filepath.Join(dir, "controller"), NodeName: "controller", Mounter: fake}))
	g.run(persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: g.store, Plugins: known, Events: claimEvents{g}}).Run)
	synctest.Wait()
	manager, err := volumemanager.New(volumemanager.Config{RootDir: filepath.Join(dir, "node"), NodeName: "node1", Objects: g.store,
		Plugins: []volume.VolumePlugin{g.plugin}, Mounter: fake, Events: podEvents{g}, Resizes: g, DeviceHolder: noHolds{}})
	g.must(err)
	g.manager = manager
	g.run(manager.Run)
	return g
}

func (g *growing) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// run runs a part of the cluster until the test ends.
func (g *growing) run(f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	g.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			g.t.Error(err)
		}
	})
}

// ReportNodeResize implements [volume.NodeResizeReporter].
func (g *growing) ReportNodeResize(ctx context.Context, _ types.NamespacedName, _ types.UID, size resource.Quantity, failed error) error {
	claim := pvbuild.GetClaim(g.t, g.store, "data").DeepCopy()
	if !pvapi.RecordNodeResize(&claim.Status, size, failed, time.Now()) {
		return nil
	}
	_, err := g.store.UpdateStatus(ctx, claim)
	return err
}

func (g *growing) setUp() {
	g.t.Helper()
	_, err := g.manager.SetUpPod(g.t.Context(), g.pod)
	g.must(err)
}

// fails has a first attempt to set the pod up fail.
func (g *growing) fails(why string) {
	g.t.Helper()
	if _, err := g.manager.SetUpPod(g.t.Context(), g.pod); err == nil || !strings.Contains(err.Error(), why) {
		g.t.Errorf("SetUpPod = %v, want %q", err, why)
	}
}

// tearDown fails the test if anything is left.
func (g *growing) tearDown() {
	g.t.Helper()
	g.must(g.manager.TearDownPod(g.t.Context(), g.pod.UID))
	synctest.Wait()
	if left := g.disk.open(); len(left) > 0 {
		g.t.Errorf("sessions are left: %v", left)
	}
}

// ask has the claim's owner ask for a size.
func (g *growing) ask(size string) {
	g.t.Helper()
	claim := pvbuild.GetClaim(g.t, g.store, "data").DeepCopy()
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	_, err := g.store.Update(g.t.Context(), claim)
	g.must(err)
}

// enlarge has the administrator write a size into the PersistentVolume.
func (g *growing) enlarge(size string) {
	g.t.Helper()
	pv := pvbuild.GetPV(g.t, g.store, "pv").DeepCopy()
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	_, err := g.store.Update(g.t.Context(), pv)
	g.must(err)
}

// grow makes the disk larger on its target.
func (g *growing) grow(size int64) {
	g.disk.mu.Lock()
	defer g.disk.mu.Unlock()
	g.disk.size = size
}

// want compares what the claim says of its size once nothing is left to do: that it has, that it
// is to get, how far that is, and the conditions.
func (g *growing) want(want string) {
	g.t.Helper()
	synctest.Wait()
	s := pvbuild.GetClaim(g.t, g.store, "data").Status
	has, gets := s.Capacity[v1.ResourceStorage], s.AllocatedResources[v1.ResourceStorage]
	words := []string{has.String(), gets.String(), string(s.AllocatedResourceStatuses[v1.ResourceStorage])}
	for _, c := range s.Conditions {
		words = append(words, string(c.Type))
	}
	if got := strings.TrimSpace(strings.Join(words, " ")); got != want {
		g.t.Errorf("the claim has %q, want %q; told: %q", got, want, g.all())
	}
}

func (g *growing) all() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.told...)
}

func (g *growing) wantTold(words string) {
	g.t.Helper()
	synctest.Wait()
	if all := g.all(); !strings.Contains(strings.Join(all, "\n"), words) {
		g.t.Errorf("told were %q, want %q", all, words)
	}
}

func (g *growing) tell(reason, message string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.told = append(g.told, reason+" "+message)
}

// claimEvents and podEvents are what the controller and the node tell.
type (
	claimEvents struct{ *growing }
	podEvents   struct{ *growing }
)

func (e claimEvents) Event(_ runtime.Object, _, reason, message string) { e.tell(reason, message) }
func (e podEvents) Event(_ *v1.Pod, _, reason, message string)          { e.tell(reason, message) }

// noHolds has no loop devices.
type noHolds struct{}

func (noHolds) Hold(string) error    { return nil }
func (noHolds) Release(string) error { return nil }
