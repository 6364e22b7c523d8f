package persistentvolume_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

// grower is a plugin whose storage grows in steps of 1Gi.
type grower struct {
	*storage

	mu    sync.Mutex
	node  bool // has a part
	err   error
	grown []string // the sizes that were asked for
}

func (g *grower) ExpandSpec(_ context.Context, spec *volume.Spec, size resource.Quantity) (resource.Quantity, bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.grown = append(g.grown, size.String())
	steps := (size.Value() + 1<<30 - 1) >> 30
	return *resource.NewQuantity(steps<<30, resource.BinarySI), g.node, g.err
}

func (g *grower) fails(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

func (g *grower) asked() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return fmt.Sprint(g.grown)
}

// growerWorld has a bound claim of 1Gi whose plugin grows volumes.
func growerWorld(t *testing.T, node bool) (*world, *grower) {
	g := &grower{node: node}
	w := newWorld(t, storageClass("grows", expandable), pvbuild.NewPV("pv", "1Gi", pvbuild.Class("grows")), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("grows")))
	w.withPlugin(func(made *storage) volume.VolumePlugin {
		g.storage = made
		return g
	})
	w.start()
	w.settle()
	w.wantBound("data", "pv")
	return w, g
}

func (w *world) wantSize(pv, size string) {
	w.t.Helper()
	if has := w.pv(pv).Spec.Capacity[v1.ResourceStorage]; has.String() != size {
		w.t.Errorf("the volume has %s, want %s", has.String(), size)
	}
}

// wantSizeBefore wants a volume to say how large its file system is still; empty: as large as
// the volume.
func (w *world) wantSizeBefore(pv, want string) {
	w.t.Helper()
	if has := w.pv(pv).Annotations[pvapi.AnnPreResizeCapacity]; has != want {
		w.t.Errorf("the volume says that its file system has %q, want %q", has, want)
	}
}

func TestPluginExpandsAVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := growerWorld(t, false)
		w.ask("data", "4608Mi")
		w.wantGrowth("data", "5Gi 4608Mi")
		w.wantSize("pv", "5Gi")
		w.events.want(t, "data: Normal VolumeResizeSuccessful the volume has 5Gi")
		if got := g.asked(); got != "[4608Mi]" {
			t.Errorf("asked for %s", got)
		}
		w.wantQuiet(0)
		w.ask("data", "5Gi") // which it has
		w.wantQuiet(0)
	})
	synctest.Test(t, func(t *testing.T) {
		w, g := growerWorld(t, true)
		w.ask("data", "5Gi")
		w.wantGrowth("data", "1Gi 5Gi NodeResizePending FileSystemResizePending=True")
		w.wantSize("pv", "5Gi")
		w.wantSizeBefore("pv", "1Gi")
		w.wantEvent("data: Normal FileSystemResizeRequired", "5Gi")
		if got := g.asked(); got != "[5Gi]" {
			t.Errorf("asked for %s", got)
		}
		w.wantQuiet(0)
		w.setStatus("data", func(s *v1.PersistentVolumeClaimStatus) {
			s.Capacity[v1.ResourceStorage] = resource.MustParse("5Gi")
			s.AllocatedResourceStatuses, s.Conditions = nil, nil
		})
		w.wantGrowth("data", "5Gi 5Gi")
		w.wantSizeBefore("pv", "")
	})
}

// A volume that has grown for a claim, and on no node, goes to the next claim with the file
// system that it has, which a node makes larger for that one.
func TestNextClaimKnowsTheFileSystemsSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("grows", expandable), pvbuild.NewClaim("next", "5Gi", pvbuild.OfClass("grows")),
			pvbuild.NewPV("pv", "5Gi", pvbuild.Class("grows"), func(pv *v1.PersistentVolume) {
				pv.Annotations = map[string]string{pvapi.AnnPreResizeCapacity: "1Gi"}
			}))
		w.withPlugin(func(made *storage) volume.VolumePlugin { return &grower{storage: made} })
		w.start()
		w.settle()
		w.wantBound("next", "pv")
		w.wantGrowth("next", "1Gi 5Gi NodeResizePending FileSystemResizePending=True")
		w.wantSizeBefore("pv", "1Gi")
		w.setStatus("next", func(s *v1.PersistentVolumeClaimStatus) { // as a kubelet does
			s.Capacity[v1.ResourceStorage] = resource.MustParse("5Gi")
			s.AllocatedResourceStatuses, s.Conditions = nil, nil
		})
		w.wantGrowth("next", "5Gi 5Gi")
		w.wantSizeBefore("pv", "")
		w.wantQuiet(0)
	})
}

// A failure is told and tried again. A claim that asks for less meanwhile gets that, once no
// attempt at the other size can be under way.
func TestExpansionThatFails(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want string // after a smaller size was asked for
	}{
		"for certain":      {volume.NothingDone(errors.New("the pool is full")), "3Gi 3Gi"},
		"perhaps":          {errors.New("no answer"), "1Gi 500Gi ControllerResizeInProgress Resizing=True ControllerResizeError=True"},
		"while it is used": {volume.NothingDone(volume.ErrResizeInUse), "3Gi 3Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, g := growerWorld(t, false)
				g.fails(tc.err)
				w.ask("data", "500Gi")
				time.Sleep(time.Minute)
				synctest.Wait()
				w.wantGrowth("data", "1Gi 500Gi ControllerResizeInProgress Resizing=True ControllerResizeError=True")
				w.wantEvent("data: Warning VolumeResizeFailed it is not made larger: to 500Gi", tc.err.Error())
				w.wantMissing("data", tc.err.Error())
				if n := w.events.count("data: Warning VolumeResizeFailed"); n != 1 {
					t.Errorf("it was told %d times: %s", n, w.events)
				}
				if got := g.asked(); len(got) < len("[500Gi 500Gi]") {
					t.Errorf("asked for %s", got)
				}
				if tc.want == "3Gi 3Gi" {
					g.fails(nil)
				}
				w.ask("data", "3Gi")
				w.wantGrowth("data", tc.want)
				g.fails(nil)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if tc.want != "3Gi 3Gi" {
					w.wantGrowth("data", "500Gi 500Gi")
				}
				w.wantMissing("data", "")
				w.wantQuiet(0)
			})
		})
	}
}

func TestExpansionToAnInfeasibleSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, g := growerWorld(t, true)
		g.fails(volume.NothingDone(fmt.Errorf("%w: quota", volume.ErrResizeInfeasible)))
		w.ask("data", "500Gi")
		time.Sleep(time.Hour)
		synctest.Wait()
		w.wantGrowth("data", "1Gi 500Gi ControllerResizeInfeasible ControllerResizeError=True")
		w.wantEvent("data: Warning VolumeResizeFailed", "quota")
		w.stop()
		w.start()
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := g.asked(); got != "[500Gi]" {
			t.Errorf("asked for %s", got)
		}
		w.wantMissing("data", "quota") // also by a controller that has not tried it
		g.fails(nil)
		w.ask("data", "2Gi")
		w.wantGrowth("data", "1Gi 2Gi NodeResizePending FileSystemResizePending=True")
		w.wantSize("pv", "2Gi")
	})
}

// Whatever dies when, the volume and its claim have the size, and the node is asked for once.
func TestExpansionByAPluginSurvivesCrashes(t *testing.T) {
	for _, node := range []bool{false, true} {
		sweepCrashes(t, 3, func(t *testing.T) (w *world) {
			w, _ = growerWorld(t, node)
			w.stop()
			w.ask("data", "5Gi")
			return w
		}, func(*world) {}, func(w *world) {
			want := "5Gi 5Gi"
			if node {
				want = "1Gi 5Gi NodeResizePending FileSystemResizePending=True"
			}
			w.wantGrowth("data", want)
			w.wantSize("pv", "5Gi")
			w.wantBound("data", "pv")
		})
	}
}

// nodeGrower is a plugin of disks that their administrator enlarges, as those of iSCSI targets:
// the node does the rest.
type nodeGrower struct{ *storage }

func (nodeGrower) RequiresFSResize() bool { return true }
func (nodeGrower) NodeExpand(context.Context, volume.NodeResizeOptions) (bool, error) {
	return true, nil
}

// A claim of such a volume waits for the administrator, which is no error, and then for the node.
func TestExpansionOfStorageThatIsGrownOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("grows", expandable), pvbuild.NewPV("pv", "1Gi", pvbuild.Class("grows")), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("grows")))
		w.withPlugin(func(made *storage) volume.VolumePlugin { return nodeGrower{made} })
		w.start()
		w.settle()
		w.ask("data", "5Gi")
		w.wantGrowth("data", "1Gi 5Gi ControllerResizeInProgress Resizing=True")
		w.wantEvent("data: Normal ExternalExpanding", "asks for 5Gi", `volume "pv" has 1Gi`, "enlarge its storage, and then its spec.capacity")
		w.wantMissing("data", `expand volume "pv" to 5Gi`)
		w.change("pv", capacity("5Gi"))
		w.settle()
		w.wantGrowth("data", "1Gi 5Gi NodeResizePending FileSystemResizePending=True")
		w.wantMissing("data", "")
		w.setStatus("data", func(s *v1.PersistentVolumeClaimStatus) { // as the node does
			s.Capacity[v1.ResourceStorage] = resource.MustParse("5Gi")
			s.AllocatedResourceStatuses, s.Conditions = nil, nil
		})
		w.wantGrowth("data", "5Gi 5Gi")
		w.wantQuiet(0)
	})
}
