package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/volumemanager"
)

// growingDisk is a disk whose file system grows on the node.
type growingDisk struct {
	*disk
	// whenMounted: it grows only where a pod has it.
	whenMounted bool
	grown       atomic.Int32 // how often it has
}

func (d *growingDisk) RequiresFSResize() bool { return true }

func (d *growingDisk) NodeExpand(ctx context.Context, o volume.NodeResizeOptions) (done bool, err error) {
	if o.VolumeSpec.ReadOnly {
		d.t.Error("a read-only volume is grown")
	}
	place := "device"
	if strings.Contains(o.DeviceMountPath, "/pods/") {
		place = "pod"
	}
	if o.DeviceStagePath != d.place(o.VolumeSpec.Name()) && !d.noDevices {
		d.t.Errorf("the device's place is said to be %q", o.DeviceStagePath)
	}
	call := diskCall{Op: "NodeExpand", Whose: place + " " + o.OldSize.String() + " to " + o.NewSize.String()}
	return !d.whenMounted || place == "pod", d.calls.Do(ctx, call, func() error { d.grown.Add(1); return nil })
}

// resizes enters what a node reports into the claims of a store.
type resizes struct {
	store *objects.Store
	calls fault.Injector[string]
}

func (r *resizes) ReportNodeResize(ctx context.Context, name types.NamespacedName, uid types.UID, size resource.Quantity, err error) error {
	return r.calls.Do(ctx, fmt.Sprintf("%s %s %v", name.Name, size.String(), err), func() error {
		claim, e := objects.Get[*v1.PersistentVolumeClaim](ctx, r.store, pvapi.ClaimRef(name))
		if e != nil || claim.UID != uid {
			return e
		}
		next := claim.DeepCopy()
		if !pvapi.RecordNodeResize(&next.Status, size, err, time.Now()) {
			return nil
		}
		_, e = r.store.UpdateStatus(ctx, next)
		return e
	})
}

// startResizes reports, too, that a growth begins.
type startResizes struct{ *resizes }

func (r startResizes) ReportNodeResizeStarted(ctx context.Context, name types.NamespacedName, uid types.UID) error {
	return r.calls.Do(ctx, name.Name+" begins", func() error {
		claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, r.store, pvapi.ClaimRef(name))
		if err != nil || claim.UID != uid {
			return err
		}
		next := claim.DeepCopy()
		if !pvapi.RecordNodeResizeStarted(&next.Status) {
			return nil
		}
		_, err = r.store.UpdateStatus(ctx, next)
		return err
	})
}

// growthWorld has pods with the disk "a" of a claim that has 1Gi.
type growthWorld struct {
	*world
	disk    *growingDisk
	resizes *resizes
}

func newGrowthWorld(t testing.TB, mode v1.PersistentVolumeAccessMode) *growthWorld {
	w := newWorld(t)
	d := &growingDisk{disk: &disk{t: t}}
	w.plugins = besides(d)
	g := &growthWorld{world: w, disk: d, resizes: &resizes{store: w.store}}
	w.resizes = g.resizes
	claim, pv := boundPair("a", "pv-a")
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	pv.Spec.Capacity, claim.Status.Capacity, claim.Spec.Resources.Requests = size, size, size
	pv.Spec.AccessModes, claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{mode}, []v1.PersistentVolumeAccessMode{mode}
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{GCEPersistentDisk: diskSource("a")}
	w.add(claim, pv)
	return g
}

func growthPod(name string) *v1.Pod { return newPod(name, claimVolume("v", "a", false)) }

func (g *growthWorld) claim() *v1.PersistentVolumeClaim {
	g.t.Helper()
	c, err := objects.Get[*v1.PersistentVolumeClaim](context.Background(), g.store, volume.NewObjectRef("PersistentVolumeClaim", "ops-test", "a"))
	if err != nil {
		g.t.Fatal(err)
	}
	return c.DeepCopy()
}

// enlarge is the controller's part: the volume has the size, and the claim says so.
func (g *growthWorld) enlarge(size string, status func(*v1.PersistentVolumeClaimStatus)) {
	g.t.Helper()
	pv, err := objects.Get[*v1.PersistentVolume](context.Background(), g.store, volume.NewObjectRef("PersistentVolume", "", "pv-a"))
	if err != nil {
		g.t.Fatal(err)
	}
	pv = pv.DeepCopy()
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	if _, err := g.store.Update(context.Background(), pv); err != nil {
		g.t.Fatal(err)
	}
	c := g.claim()
	status(&c.Status)
	if _, err := g.store.UpdateStatus(context.Background(), c); err != nil {
		g.t.Fatal(err)
	}
}

// ask has the claim's owner ask for a size.
func (g *growthWorld) ask(size string) {
	g.t.Helper()
	c := g.claim()
	c.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	if _, err := g.store.Update(context.Background(), c); err != nil {
		g.t.Fatal(err)
	}
}

// pending is the status of a claim whose growth waits for the node.
func pending(s *v1.PersistentVolumeClaimStatus) {
	s.AllocatedResourceStatuses = pvapi.SetEntry(s.AllocatedResourceStatuses, v1.ResourceStorage, v1.PersistentVolumeClaimNodeResizePending)
	olderPending(s)
}

// olderPending is the same by a controller from before Kubernetes 1.32.
func olderPending(s *v1.PersistentVolumeClaimStatus) {
	s.Conditions = []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue}}
}

// finished is the status of a claim whose volume was grown by another node.
func finished(size string) func(*v1.PersistentVolumeClaimStatus) {
	return func(s *v1.PersistentVolumeClaimStatus) {
		s.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	}
}

// has fails the test unless the claim has a size, and a state of its growth.
func (g *growthWorld) has(size string, state v1.ClaimResourceStatus) {
	g.t.Helper()
	s := g.claim().Status
	if got := s.Capacity[v1.ResourceStorage]; got.String() != size || s.AllocatedResourceStatuses[v1.ResourceStorage] != state {
		g.t.Errorf("the claim has %s and state %q, want %s and %q", got.String(), s.AllocatedResourceStatuses[v1.ResourceStorage], size, state)
	}
	if state == "" && len(s.Conditions) > 0 {
		g.t.Errorf("the claim has conditions: %v", s.Conditions)
	}
}

// expect waits until nothing is left to do, and compares the calls of the plugin.
func (g *growthWorld) expect(calls ...string) {
	g.t.Helper()
	synctest.Wait()
	if diff := cmpDiff(calls, g.disk.log()); diff != "" {
		g.t.Error(diff)
	}
}

// grown are the calls of NodeExpand among all.
func (g *growthWorld) grown() (calls []string) {
	for _, c := range g.disk.log() {
		if strings.HasPrefix(c, "NodeExpand") {
			calls = append(calls, c)
		}
	}
	return calls
}

func (g *growthWorld) told(what string) bool {
	return slices.ContainsFunc(g.events.all(), func(e string) bool { return strings.Contains(e, what) })
}

// in runs a test with virtual time.
func in(f func(t *testing.T)) func(*testing.T) {
	return func(t *testing.T) { synctest.Test(t, f) }
}

func TestVolumeGrowsWhileMounted(t *testing.T) {
	for name, status := range map[string]func(*v1.PersistentVolumeClaimStatus){"by status": pending, "by condition": olderPending} {
		t.Run(name, in(func(t *testing.T) {
			g := newGrowthWorld(t, v1.ReadWriteOnce)
			manager, stop := g.start()
			one, two := growthPod("one"), growthPod("two")
			mustSetUp(t, manager, one, two)
			g.expect("MountDevice a", "SetUp uid-one", "SetUp uid-two")
			g.enlarge("2Gi", status)
			synctest.Wait()
			if diff := cmpDiff([]string{"NodeExpand pod 1Gi to 2Gi"}, g.grown()); diff != "" {
				t.Errorf("grown for the two pods:\n%s", diff)
			}
			g.has("2Gi", "")
			if !g.told("Normal FileSystemResizeSuccessful") {
				t.Errorf("events %q", g.events.all())
			}
			mustSetUp(t, manager, one, two)
			stop()
			manager, _ = g.start()
			mustSetUp(t, manager, one, two)
			if calls := g.grown(); len(calls) > 0 {
				t.Errorf("grown again: %q", calls)
			}
			mustTearDown(t, manager, one, two)
			g.assertNoDevices()
		}))
	}
}

func TestVolumeGrowsBeforeItsFirstPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrowthWorld(t, v1.ReadWriteOnce)
		g.enlarge("2Gi", pending)
		manager, _ := g.start()
		mustSetUp(t, manager, growthPod("one"))
		synctest.Wait()
		want := []string{"MountDevice a", "NodeExpand device 1Gi to 2Gi", "SetUp uid-one"}
		if diff := cmpDiff(want, g.disk.log()[:3]); diff != "" {
			t.Error(diff)
		}
		g.has("2Gi", "")
		g.disk.log()
		g.disk.whenMounted = true
		mustTearDown(t, manager, growthPod("one"))
		g.enlarge("3Gi", pending)
		mustSetUp(t, manager, growthPod("one"))
		synctest.Wait()
		want = []string{"TearDown uid-one", "UnmountDevice pv-a", "MountDevice a", "NodeExpand device 2Gi to 3Gi", "SetUp uid-one", "NodeExpand pod 2Gi to 3Gi"}
		if diff := cmpDiff(want, g.disk.log()[:6]); diff != "" {
			t.Errorf("a plugin that wants to be called when it is mounted:\n%s", diff)
		}
		g.has("3Gi", "")
	})
}

// A volume that does not grow is there for its pod with the size that it had, and that is told.
func TestInfeasibleGrowth(t *testing.T) {
	for name, tc := range map[string]struct {
		online, reports bool
	}{"mounted": {true, true}, "before the first pod": {false, true}, "without a cluster": {true, false}} {
		t.Run(name, in(func(t *testing.T) {
			g := newGrowthWorld(t, v1.ReadWriteOnce)
			if !tc.reports {
				g.world.resizes = nil
			}
			manager, _ := g.start()
			refuse := g.disk.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("NodeExpand"), Err: fmt.Errorf("%w: quota", volume.ErrResizeInfeasible)})
			if tc.online {
				mustSetUp(t, manager, growthPod("one"))
			}
			g.enlarge("2Gi", pending)
			mustSetUp(t, manager, growthPod("one"))
			mustSetUp(t, manager, growthPod("two"))
			time.Sleep(time.Hour)
			synctest.Wait()
			if calls := g.grown(); len(calls) != 1 {
				t.Errorf("calls %q", calls)
			}
			if !g.told("VolumeResizeFailed NodeExpandVolume failed for volume \"pv-a\": it does not grow to 2Gi: the volume cannot get this size: quota") {
				t.Errorf("events %q", g.events.all())
			}
			if !tc.reports {
				g.has("1Gi", v1.PersistentVolumeClaimNodeResizePending)
				return
			}
			g.has("1Gi", v1.PersistentVolumeClaimNodeResizeInfeasible)
			refuse()
			g.enlarge("2Gi", pending) // a controller asks anew
			synctest.Wait()
			g.has("2Gi", "")
		}))
	}
}

func TestGrowthOfAVolumeInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrowthWorld(t, v1.ReadWriteOnce)
		manager, _ := g.start()
		mustSetUp(t, manager, growthPod("one"))
		refuse := g.disk.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("NodeExpand"), Err: volume.ErrResizeInUse})
		g.enlarge("2Gi", pending)
		time.Sleep(time.Hour)
		synctest.Wait()
		refuse()
		mustSetUp(t, manager, growthPod("one"), growthPod("two")) // on the same device
		time.Sleep(time.Hour)
		synctest.Wait()
		if calls := g.grown(); len(calls) != 1 {
			t.Errorf("while it is in use: %q", calls)
		}
		g.has("1Gi", v1.PersistentVolumeClaimNodeResizePending)
		if !slices.ContainsFunc(g.claim().Status.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
			return c.Type == v1.PersistentVolumeClaimNodeResizeError && strings.Contains(c.Message, "in use")
		}) {
			t.Errorf("conditions %v", g.claim().Status.Conditions)
		}
		mustTearDown(t, manager, growthPod("one"), growthPod("two"))
		mustSetUp(t, manager, growthPod("one"))
		synctest.Wait()
		if diff := cmpDiff([]string{"NodeExpand device 1Gi to 2Gi"}, g.grown()); diff != "" {
			t.Errorf("at the next mount:\n%s", diff)
		}
		g.has("2Gi", "")
	})
}

// A failure that is none of these keeps a pod from starting, and is retried. A volume that is
// mounted stays so, and is refreshed.
func TestGrowthThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrowthWorld(t, v1.ReadWriteOnce)
		manager, _ := g.start()
		broken := errors.New("the file system is not clean")
		repair := g.disk.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("NodeExpand"), Err: broken})
		g.enlarge("2Gi", pending)
		if _, err := manager.SetUpPod(t.Context(), growthPod("one")); !errors.Is(err, broken) {
			t.Fatalf("SetUpPod: %v", err)
		}
		g.expect("MountDevice a", "NodeExpand device 1Gi to 2Gi")
		repair()
		time.Sleep(time.Second)
		synctest.Wait()
		g.has("2Gi", "")
		g.disk.log()

		repair = g.disk.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("NodeExpand"), Err: broken})
		g.enlarge("3Gi", pending)
		synctest.Wait()
		row := manager.Explain()[0]
		if row.State != volumemanager.StateMounted || !errors.Is(row.Err, broken) || row.NextRetry.IsZero() {
			t.Errorf("Explain: %+v", row)
		}
		if calls := g.disk.log(); slices.Index(calls, "SetUp uid-one") != 0 {
			t.Errorf("the refresh waits for the growth: %q", calls)
		}
		repair()
		time.Sleep(time.Second)
		synctest.Wait()
		g.has("3Gi", "")
		if row := manager.Explain()[0]; row.Err != nil {
			t.Errorf("Explain: %+v", row)
		}
	})
}

// A growth that did nothing does not undo the set-up that it follows: the record of what is
// mounted stays, so that the next process finds it.
func TestRefusedGrowthKeepsTheRecord(t *testing.T) {
	for _, noDevices := range []bool{true, false} {
		t.Run(fmt.Sprint("without a device ", noDevices), in(func(t *testing.T) {
			g := newGrowthWorld(t, v1.ReadWriteOnce)
			g.disk.noDevices, g.disk.whenMounted = noDevices, true
			refused := volume.NothingDone(errors.New("not now"))
			repair := g.disk.calls.Inject(fault.Fault[diskCall]{Match: func(c diskCall) bool { return strings.HasPrefix(c.String(), "NodeExpand pod") }, Err: refused})
			g.enlarge("2Gi", pending)
			manager, stop := g.start()
			if _, err := manager.SetUpPod(t.Context(), growthPod("one")); !errors.Is(err, refused) || !volume.IsUncertain(err) {
				t.Fatalf("SetUpPod: %v", err)
			}
			if kept := g.records(); len(kept) != 1 {
				t.Errorf("records of the mounted volume: %q", kept)
			}
			stop()
			repair()
			manager, _ = g.start() // only the record tells it of the volume
			mustTearDown(t, manager, growthPod("one"))
			g.assertNoDevices()
		}))
	}
}

// Another node has grown a shared volume, and the claim has its size already.
func TestSharedVolumeGrowsOnEachNode(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), in(func(t *testing.T) {
			g := newGrowthWorld(t, v1.ReadWriteMany)
			manager, stop := g.start()
			mustSetUp(t, manager, growthPod("one"))
			if restart {
				stop()
			}
			g.enlarge("2Gi", finished("2Gi"))
			if restart {
				manager, _ = g.start()
				mustSetUp(t, manager, growthPod("one"))
			}
			synctest.Wait()
			if diff := cmpDiff([]string{"NodeExpand pod 1Gi to 2Gi"}, g.grown()); diff != "" {
				t.Error(diff)
			}
			if reports := g.resizes.calls.Calls(); len(reports) > 0 {
				t.Errorf("reported %q, which the other node has", reports)
			}
			mustTearDown(t, manager, growthPod("one"))
			mustSetUp(t, manager, growthPod("two"))
			if calls := g.grown(); len(calls) > 0 {
				t.Errorf("a volume that came with its size was grown: %q", calls)
			}
		}))
	}
}

func TestReadOnlyVolumeDoesNotGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGrowthWorld(t, v1.ReadWriteMany)
		manager, _ := g.start()
		reader := newPod("reader", claimVolume("v", "a", true))
		mustSetUp(t, manager, reader)
		g.enlarge("2Gi", pending)
		time.Sleep(time.Hour)
		synctest.Wait()
		if calls := g.grown(); len(calls) > 0 || !g.told("it is mounted read-only") {
			t.Errorf("calls %q, events %q", calls, g.events.all())
		}
		g.has("1Gi", v1.PersistentVolumeClaimNodeResizePending)
	})
}

// growingBlock is a device that the driver must be told of when it has grown.
type growingBlock struct {
	*blockDisk
	grown chan volume.NodeResizeOptions
}

func (d *growingBlock) RequiresFSResize() bool { return true }
func (d *growingBlock) NodeExpand(_ context.Context, o volume.NodeResizeOptions) (bool, error) {
	d.grown <- o
	return true, nil
}

func TestBlockVolumeGrows(t *testing.T) {
	w := newWorld(t)
	disk, h := w.withBlockDisks()
	d := &growingBlock{disk, make(chan volume.NodeResizeOptions, 8)}
	w.plugins = besides(d)
	w.resizes = &resizes{store: w.store}
	g := &growthWorld{world: w}
	g.enlarge("20Gi", func(s *v1.PersistentVolumeClaimStatus) {
		s.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("10Gi")}
		pending(s)
	})
	manager, stop := w.start()
	pod := blockPod("one", "a")
	mustSetUp(t, manager, pod)
	o := <-d.grown
	if o.DevicePath != d.node("a") || o.DeviceMountPath != "" || o.NewSize.String() != "20Gi" {
		t.Errorf("grown with %+v", o)
	}
	g.has("20Gi", "")
	stop()
	manager, _ = w.start()
	mustSetUp(t, manager, pod)
	mustTearDown(t, manager, pod)
	if len(d.grown) > 0 {
		t.Errorf("grown again with %+v", <-d.grown)
	}
	w.assertNoBlocks(disk, h)
}
