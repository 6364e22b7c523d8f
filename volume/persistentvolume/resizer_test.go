package persistentvolume_test

import (
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/util/testenv/pvbuild"
)

func expandable(c *storagev1.StorageClass) { c.AllowVolumeExpansion = new(true) }

// ask has the claim's owner ask for another size.
func (w *world) ask(claim, size string) {
	w.t.Helper()
	w.changeClaim(claim, func(c *v1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	})
	w.settle()
}

// growth is what a claim's status says of its size: "capacity target state
// conditions".
func (w *world) growth(claim string) string {
	s := w.claim(claim).Status
	capacity, target := s.Capacity[v1.ResourceStorage], s.AllocatedResources[v1.ResourceStorage]
	words := []string{capacity.String(), target.String(), string(s.AllocatedResourceStatuses[v1.ResourceStorage])}
	for _, c := range s.Conditions {
		words = append(words, string(c.Type)+"="+string(c.Status))
	}
	return strings.TrimSpace(strings.Join(words, " "))
}

func (w *world) wantGrowth(claim, want string) {
	w.t.Helper()
	if got := w.growth(claim); got != want {
		w.t.Errorf("claim %s has %q, want %q; events: %s", claim, got, want, w.events)
	}
}

// wantMissing wants the controller to say why a claim does not get what it asks for; empty:
// nothing is in its way.
func (w *world) wantMissing(claim, want string) {
	w.t.Helper()
	err := w.controller.ExplainChanges(pvbuild.ClaimRef(claim).NamespacedName)
	if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
		w.t.Errorf("claim %s does not get what it asks for since %v, want %q", claim, err, want)
	}
}

// grownWorld has a bound claim of 1Gi.
func grownWorld(t *testing.T, options ...pvbuild.Option) *world {
	w := newWorld(t, storageClass("grows", expandable), pvbuild.NewPV("pv", "1Gi", append(options, pvbuild.Class("grows"))...), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("grows")))
	w.start()
	w.settle()
	w.wantBound("data", "pv")
	return w
}

// setStatus has somebody else, a kubelet or resizer, write a claim's status.
func (w *world) setStatus(name string, f func(*v1.PersistentVolumeClaimStatus)) {
	w.t.Helper()
	claim := w.claim(name).DeepCopy()
	f(&claim.Status)
	if _, err := w.api.UpdateStatus(w.t.Context(), claim); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
}

func TestExpansionIsRecordedUntilTheNodeHasDoneIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := grownWorld(t)
		w.wantGrowth("data", "1Gi 0")
		w.ask("data", "5Gi")
		w.wantGrowth("data", "1Gi 5Gi ControllerResizeInProgress Resizing=True")
		w.events.want(t, `data: Normal ExternalExpanding waiting for an external controller to expand this PVC: it asks for 5Gi, and volume "pv" has 1Gi`)
		// What is under way goes on, whatever is asked for meanwhile, and is not
		// forgotten by who restarts.
		w.ask("data", "8Gi")
		w.ask("data", "3Gi")
		w.stop()
		w.start()
		w.settle()
		w.wantGrowth("data", "1Gi 5Gi ControllerResizeInProgress Resizing=True")
		w.wantQuiet(0)
		w.change("pv", capacity("5Gi"))
		w.settle()
		w.wantGrowth("data", "1Gi 5Gi NodeResizePending FileSystemResizePending=True")
		w.setStatus("data", func(s *v1.PersistentVolumeClaimStatus) { // as a kubelet does
			s.Capacity[v1.ResourceStorage] = resource.MustParse("5Gi")
			s.AllocatedResourceStatuses, s.Conditions = nil, nil
		})
		w.wantGrowth("data", "5Gi 5Gi")
		w.ask("data", "6Gi")
		w.wantGrowth("data", "5Gi 6Gi ControllerResizeInProgress Resizing=True")
		w.wantBound("data", "pv")
	})
}

// Nobody on a node has anything to do for a volume whose plugin says so; and what
// the administrator has enlarged by himself is as good.
func TestExpansionThatNeedsNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi"), pvbuild.NewClaim("data", "1Gi")).withStorage()
		w.start()
		w.settle()
		w.ask("data", "5Gi")
		w.wantGrowth("data", "1Gi 0  ControllerResizeError=True")
		w.wantEvent("data: Warning VolumeResizeFailed", "no storage class", "5Gi", `"pv"`)
		w.change("pv", capacity("7Gi"))
		w.settle()
		w.wantGrowth("data", "7Gi 5Gi")
		w.events.want(t, "data: Normal VolumeResizeSuccessful the volume has 7Gi")
		w.wantQuiet(0)
	})
}

func TestRefusedExpansion(t *testing.T) {
	for name, tc := range map[string]struct {
		class   string
		storage bool // the plugin is known
		want    string
	}{
		"a class that does not allow it":   {class: "fixed", want: `StorageClass "fixed" has not allowVolumeExpansion: true`},
		"a class that there is not":        {class: "none", want: `its class is "none"`},
		"no class":                         {want: "no storage class"},
		"a plugin that cannot grow volume": {class: "grows", storage: true, want: "the plugin example.com/storage cannot expand volumes"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, storageClass("fixed"), storageClass("grows", expandable), pvbuild.NewPV("pv", "1Gi", pvbuild.Class(tc.class)), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass(tc.class)))
				if tc.storage {
					w.withStorage()
				}
				w.start()
				w.settle()
				w.ask("data", "5Gi")
				w.wantGrowth("data", "1Gi 0  ControllerResizeError=True")
				if message := w.claim("data").Status.Conditions[0].Message; !strings.Contains(message, tc.want) {
					t.Errorf("the condition says %q", message)
				}
				w.wantMissing("data", tc.want)
				w.wantEvent("data: Warning VolumeResizeFailed it is not made larger", tc.want, "asks for 5Gi", `"pv"`)
				w.wantQuiet(0)
				w.wantBound("data", "pv")
				w.ask("data", "1Gi")
				w.wantGrowth("data", "1Gi 0")
				w.wantMissing("data", "")
				w.ask("data", "2Gi")
				if n := w.events.count("data: Warning VolumeResizeFailed"); n != 2 {
					t.Errorf("asked again, it was refused %d times in all: %s", n, w.events)
				}
			})
		})
	}
}

func TestNothingBecomesSmaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "5Gi"), pvbuild.NewClaim("data", "3Gi"))
		w.start()
		w.settle()
		w.wantGrowth("data", "5Gi 0") // more than it asks for, which is no shrinking
		if n := w.events.count("data: Warning"); n != 0 {
			t.Errorf("events: %s", w.events)
		}
		w.ask("data", "2Gi")
		w.wantEvent("data: Warning VolumeResizeFailed a volume cannot be made smaller", "asks for 2Gi", "has 5Gi", "ask for 3Gi again")
		w.wantGrowth("data", "5Gi 0")
		w.wantBound("data", "pv")
		if size := w.pv("pv").Spec.Capacity[v1.ResourceStorage]; size.String() != "5Gi" {
			t.Errorf("the volume has %s", size.String())
		}
		w.wantQuiet(0)
	})
}

// What a resizer has found infeasible is not begun again before something else is
// asked for.
func TestInfeasibleExpansion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := grownWorld(t)
		w.ask("data", "500Gi")
		w.setStatus("data", func(s *v1.PersistentVolumeClaimStatus) {
			s.AllocatedResourceStatuses[v1.ResourceStorage] = v1.PersistentVolumeClaimControllerResizeInfeasible
		})
		w.wantGrowth("data", "1Gi 500Gi ControllerResizeInfeasible Resizing=True")
		w.ask("data", "2Gi")
		w.wantGrowth("data", "1Gi 2Gi ControllerResizeInProgress Resizing=True")
	})
}

// The status of a CSI volume is its resizer's.
func TestExpansionOfACSIVolumeIsItsResizers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := grownWorld(t, func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}}
		})
		w.ask("data", "5Gi")
		w.wantGrowth("data", "1Gi 0")
		w.events.want(t, "data: Normal ExternalExpanding ")
		w.wantMissing("data", `an external controller is to expand volume "pv" to 5Gi`)
		w.wantQuiet(0)
	})
}

func TestExpansionSurvivesCrashes(t *testing.T) {
	sweepCrashes(t, 3, func(t *testing.T) *world {
		w := grownWorld(t)
		w.stop()
		w.ask("data", "5Gi")
		return w
	}, func(*world) {}, func(w *world) {
		w.wantGrowth("data", "1Gi 5Gi ControllerResizeInProgress Resizing=True")
		w.wantBound("data", "pv")
	})
}
