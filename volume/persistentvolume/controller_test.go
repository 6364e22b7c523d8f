package persistentvolume_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/persistentvolume"
)

func withClaimUID(uid string) pvbuild.ClaimOption {
	return func(c *v1.PersistentVolumeClaim) { c.UID = types.UID(uid) }
}

func TestControllerBindsWhatFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("small", "1Gi"), pvbuild.NewPV("large", "5Gi", pvbuild.Class("big")), pvbuild.NewPV("chosen", "9Gi", pvbuild.ForClaim("by-volume", "")),
			pvbuild.NewClaim("first", "1Gi"), pvbuild.NewClaim("second", "2Gi", pvbuild.OfClass("big")), pvbuild.NewClaim("by-volume", "1Gi"), pvbuild.NewClaim("third", "1Gi"))
		w.start()
		w.settle()
		w.wantBound("second", "large")
		w.wantBound("by-volume", "chosen")
		// One of the two that want 1Gi got it, the other waits, and says why.
		if a, b := w.claim("first").Status.Phase, w.claim("third").Status.Phase; a == b || a == "" || b == "" {
			t.Errorf("first is %q and third %q; want one Bound, one Pending", a, b)
		}
		waiting := "first"
		if w.claim("first").Spec.VolumeName != "" {
			waiting = "third"
		}
		w.events.want(t, waiting+": Normal FailedBinding no persistent volumes available for this claim and no storage class is set: ")
		if w.pv("chosen").Annotations["pv.kubernetes.io/bound-by-controller"] != "" || w.pv("large").Annotations["pv.kubernetes.io/bound-by-controller"] != "yes" {
			t.Error("who chose is noted wrongly")
		}
		if w.claim("second").Annotations["pv.kubernetes.io/bound-by-controller"] != "yes" {
			t.Error("it is not noted that the controller chose the claim's volume")
		}

		calls := w.client.Count()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if n := w.client.Count() - calls; n != 0 {
			t.Errorf("%d calls to the API in a day in which nothing happened", n)
		}
		w.create(pvbuild.NewPV("late", "1Gi"))
		w.settle()
		w.wantBound(waiting, "late")
	})
}

// A new volume wakes one of the claims that it would do for, not all of them.
func TestANewVolumeWakesOneClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		const count = 20
		for i := range count {
			w.create(pvbuild.NewClaim(fmt.Sprintf("c%02d", i), "1Gi"))
		}
		w.create(pvbuild.NewClaim("too-large", "9Gi"))
		w.create(pvbuild.NewClaim("classy", "1Gi", pvbuild.OfClass("fast")))
		w.start()
		w.settle()
		for i := range count {
			calls := w.client.Count()
			w.create(pvbuild.NewPV(fmt.Sprintf("pv%02d", i), "2Gi"))
			w.settle()
			if n := w.client.Count() - calls; n != 4 {
				t.Errorf("%d calls for one binding, want four writes", n)
			}
		}
		for i := range count {
			w.wantClaim(fmt.Sprintf("c%02d", i), v1.ClaimBound)
		}
		w.wantClaim("too-large", v1.ClaimPending)
		w.wantClaim("classy", v1.ClaimPending)
	})
}

// What a woken claim does not take is offered to the next.
func TestAVolumeThatIsLeftIsOfferedToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewClaim("modest", "1Gi"))
		w.config.Workers = 1
		w.start()
		w.settle()
		w.create(pvbuild.NewClaim("demanding", "2Gi"))
		w.settle()
		// The only worker is busy while a large volume comes, for which the modest
		// claim is woken, and a small one, which that takes.
		w.client.Inject(fault.Fault[objectstest.Call]{
			Match: func(c objectstest.Call) bool { return c.Ref.Name == "busy" }, Nth: 1, Delay: time.Second,
		})
		w.create(pvbuild.NewClaim("busy", "9Gi"))
		synctest.Wait()
		w.create(pvbuild.NewPV("large", "2Gi", pvbuild.InPhase(v1.VolumeAvailable)))
		synctest.Wait()
		w.create(pvbuild.NewPV("small", "1Gi", pvbuild.InPhase(v1.VolumeAvailable)))
		w.settle()
		w.wantBound("modest", "small")
		w.wantBound("demanding", "large")
	})
}

func TestNamedVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("small", "1Gi"), pvbuild.NewPV("taken", "9Gi", pvbuild.ForClaim("other", "")),
			pvbuild.NewClaim("misfit", "5Gi", pvbuild.Naming("small")), pvbuild.NewClaim("thief", "1Gi", pvbuild.Naming("taken")), pvbuild.NewClaim("early", "1Gi", pvbuild.Naming("later")))
		w.start()
		w.settle()
		for _, name := range []string{"misfit", "thief", "early"} {
			w.wantClaim(name, v1.ClaimPending)
		}
		w.events.want(t, `misfit: Warning VolumeMismatch Cannot bind to requested volume "small": too small (small: 1Gi of 5Gi)`)
		w.events.want(t, `thief: Warning FailedBinding volume "taken" already bound to a different claim.`)
		w.events.want(t, `early: Normal FailedBinding volume "later", which the claim names, does not exist; create it`)
		w.create(pvbuild.NewPV("later", "1Gi"))
		w.change("taken", func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil })
		w.settle()
		w.wantBound("early", "later")
		w.wantBound("thief", "taken")
	})
}

func TestBadClaimsAndVolumesAreNeverBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		contradiction := pvbuild.NewClaim("contradiction", "1Gi", pvbuild.SelectingPairs(map[string]string{"a": "1"}), pvbuild.Selecting("a", "NotIn", "1"))
		negative := pvbuild.NewClaim("negative", "-1Gi")
		w := newWorld(t, pvbuild.NewPV("fits", "1Gi", pvbuild.Labelled("a", "1")), pvbuild.NewPV("sourceless", "9Gi", pvbuild.WithoutSource), pvbuild.NewPV("less", "-1Gi"),
			contradiction, negative, pvbuild.NewClaim("large", "2Ti"), pvbuild.NewClaim("unclassed", "1Gi", pvbuild.OfClass("nix")))
		w.start()
		w.settle()
		for _, name := range []string{"contradiction", "negative", "large", "unclassed"} {
			w.wantClaim(name, v1.ClaimPending)
			if w.events.count(name+": ") != 1 {
				t.Errorf("%d events about %s: %s", w.events.count(name+": "), name, w.events)
			}
		}
		for _, name := range []string{"fits", "sourceless", "less"} {
			if w.pv(name).Spec.ClaimRef != nil {
				t.Errorf("%s was bound", name)
			}
		}
	})
}

func TestAClaimLosesItsVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi"), pvbuild.NewClaim("data", "1Gi"))
		w.start()
		w.settle()
		w.wantBound("data", "pv")
		old := w.pv("pv").DeepCopy()
		w.delete("PersistentVolume", "", "pv")
		w.settle()
		w.wantBound("data", "pv") // it is protected
		w.change("pv", func(pv *v1.PersistentVolume) { pv.Finalizers = nil })
		w.settle()
		w.wantClaim("data", v1.ClaimLost)
		w.events.want(t, "data: Warning ClaimLost Bound claim has lost its PersistentVolume. Data on the volume is lost!")
		old.ResourceVersion, old.UID, old.DeletionTimestamp = "", "", nil
		w.create(old)
		w.settle()
		w.wantBound("data", "pv")

		w.change("pv", func(pv *v1.PersistentVolume) { pvbuild.ForClaim("somebody", "else")(pv) })
		w.settle()
		w.wantClaim("data", v1.ClaimLost)
		w.events.want(t, "data: Warning ClaimMisbound")
	})
}

func TestAReleasedVolumeIsKeptUntilItsClaimRefIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi"), pvbuild.NewClaim("data", "1Gi"))
		w.start()
		w.settle()
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.wantPV("pv", v1.VolumeReleased)
		w.create(pvbuild.NewClaim("data", "1Gi", withClaimUID("another")))
		w.settle()
		w.wantPV("pv", v1.VolumeReleased)
		w.wantClaim("data", v1.ClaimPending)

		w.law.Emptied(w.pv("pv"))
		w.change("pv", func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil })
		w.settle()
		w.wantBound("data", "pv")
	})
}

func TestAVolumeOfAClaimThatHasAnotherIsFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		byController := pvbuild.NewPV("ours", "1Gi", pvbuild.ForClaim("data", "uid-data"))
		byController.Annotations = map[string]string{"pv.kubernetes.io/bound-by-controller": "yes"}
		w := newWorld(t, byController, pvbuild.NewPV("users", "1Gi", pvbuild.ForClaim("data", "uid-data")), pvbuild.NewPV("named", "1Gi"), pvbuild.NewClaim("data", "1Gi", pvbuild.Naming("named")))
		w.start()
		w.settle()
		w.wantBound("data", "named")
		w.wantPV("ours", v1.VolumeAvailable)
		w.wantPV("users", v1.VolumeAvailable)
		if ref := w.pv("ours").Spec.ClaimRef; ref != nil {
			t.Errorf("what the controller chose is kept for %v", ref)
		}
		if ref := w.pv("users").Spec.ClaimRef; ref == nil || ref.UID != "" || ref.Name != "data" {
			t.Errorf("what the user chose is now for %v", ref)
		}
	})
}

func TestTheDefaultClassIsGivenLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi", pvbuild.Class("fast")), pvbuild.NewClaim("data", "1Gi"), pvbuild.NewClaim("none", "1Gi", pvbuild.OfClass("")))
		w.start()
		w.settle()
		w.wantClaim("data", v1.ClaimPending)
		w.create(storageClass("fast", isDefault)) // later than the claim
		w.settle()
		w.wantBound("data", "pv")
		if got := w.claim("data").Spec.StorageClassName; got == nil || *got != "fast" {
			t.Errorf("the claim's class is %v", got)
		}
		w.wantClaim("none", v1.ClaimPending)
	})
}

func TestWaitForFirstConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("local", waitForConsumer), pvbuild.NewPV("pv", "1Gi", pvbuild.Class("local")), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("local")))
		w.start()
		w.settle()
		w.wantClaim("data", v1.ClaimPending)
		w.wantPV("pv", v1.VolumeAvailable)
		w.events.want(t, "data: Normal WaitForFirstConsumer waiting for first consumer to be created before binding")
		w.change("pv", pvbuild.ForClaim("data", "uid-data")) // a scheduler has placed a pod
		w.settle()
		w.wantBound("data", "pv")
	})
}

func TestAClaimThatAsksForMoreSaysSoOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("grows", expandable), pvbuild.NewPV("pv", "1Gi", pvbuild.Class("grows")), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("grows")))
		w.start()
		w.settle()
		for _, size := range []string{"2Gi", "3Gi"} {
			c := w.claim("data").DeepCopy()
			c.Spec.Resources = pvbuild.NewClaim("", size).Spec.Resources
			if _, err := w.api.Update(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			w.settle()
		}
		w.wantBound("data", "pv")
		w.events.want(t, `data: Normal ExternalExpanding waiting for an external controller to expand this PVC: it asks for 2Gi, and volume "pv" has 1Gi`)
		w.change("pv", func(pv *v1.PersistentVolume) { pv.Spec.Capacity = pvbuild.NewPV("", "3Gi").Spec.Capacity })
		w.settle()
		// The file system in it may be as small as before.
		if got := w.claim("data").Status.Capacity[v1.ResourceStorage]; got.String() != "1Gi" {
			t.Errorf("status.capacity is %s", got.String())
		}
	})
}

// A cache that has not heard of a claim must not release its volume.
func TestAStaleCacheReleasesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.settle()
		release := w.client.Hold("PersistentVolumeClaim")
		defer release()
		w.create(pvbuild.NewClaim("data", "1Gi"))
		w.create(pvbuild.NewPV("pv", "1Gi", pvbuild.ForClaim("data", "uid-data"), pvbuild.InPhase(v1.VolumeBound)))
		w.settle()
		w.wantPV("pv", v1.VolumeBound)
	})
}

// What the controller has written itself it knows, however late it hears of it.
func TestAStaleCacheBindsNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "1Gi"), pvbuild.NewClaim("data", "1Gi"))
		w.start()
		releaseVolumes, releaseClaims := w.client.Hold("PersistentVolume"), w.client.Hold("PersistentVolumeClaim")
		w.settle()
		w.wantBound("data", "a")
		calls := w.client.Count()
		releaseVolumes()
		releaseClaims()
		w.settle()
		if n := w.client.Count() - calls; n != 0 || w.pv("b").Spec.ClaimRef != nil {
			t.Errorf("%d more calls, b is for %v", n, w.pv("b").Spec.ClaimRef)
		}
	})
}

func TestARaceForAVolumeIsLostWithoutHarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("a", "1Gi"), pvbuild.NewPV("b", "1Gi"))
		w.start()
		w.settle()
		release := w.client.Hold("PersistentVolume")
		w.change("a", func(pv *v1.PersistentVolume) { pvbuild.ForClaim("rival", "rival")(pv) }) // unheard
		w.create(pvbuild.NewClaim("data", "1Gi"))
		time.Sleep(time.Minute)
		release()
		w.settle()
		w.wantBound("data", "b")
	})
}

func TestRunTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.settle()
		if err := w.controller.Run(t.Context()); !errors.Is(err, persistentvolume.ErrRunOnce) {
			t.Errorf("err = %v", err)
		}
	})
}

// unlisted is a source that cannot be listed.
type unlisted struct{ *objectstest.Client }

func (unlisted) List(context.Context, string, string) ([]metav1.Object, error) {
	return nil, objects.ErrNotSynced
}

func TestRunFailsWhereNothingCanBeListed(t *testing.T) {
	client := objectstest.NewClient(objects.NewStore())
	defer client.Close()
	c := persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: unlisted{client}})
	if err := c.Run(t.Context()); !errors.Is(err, objects.ErrNotSynced) {
		t.Errorf("err = %v", err)
	}
}

// Whatever call the controller dies at, the next one completes what it began:
// every claim that can have a volume has one, and nobody another's.
func TestBindingSurvivesACrashAtEveryCall(t *testing.T) {
	sweepCrashes(t, 15, func(t *testing.T) *world {
		return newWorld(t, storageClass("fast", isDefault), pvbuild.NewPV("a", "2Gi", pvbuild.Class("fast")), pvbuild.NewPV("b", "1Gi", pvbuild.Class("fast")),
			pvbuild.NewPV("pre", "1Gi", pvbuild.ForClaim("prebound", "")), pvbuild.NewPV("old", "1Gi", pvbuild.ForClaim("gone", "gone"), pvbuild.InPhase(v1.VolumeBound)),
			pvbuild.NewClaim("first", "1Gi"), pvbuild.NewClaim("second", "1Gi"), pvbuild.NewClaim("prebound", "1Gi", pvbuild.OfClass("")), pvbuild.NewClaim("named", "1Gi", pvbuild.OfClass("fast"), pvbuild.Naming("a")))
	}, func(w *world) {
		w.create(pvbuild.NewPV("c", "1Gi", pvbuild.Class("fast"))) // another would be better for some by now
	}, func(w *world) {
		w.wantBound("named", "a")
		w.wantBound("prebound", "pre")
		w.wantPV("old", v1.VolumeReleased)
		for _, name := range []string{"first", "second"} {
			w.wantBound(name, w.claim(name).Spec.VolumeName)
		}
	})
}

// What a claim names is left to it by claims that are looked at first. One that the
// cache has not heard of yet cannot be minded, as with Kubernetes: of the two claims
// one stays without, and is told so.
func TestWhatAClaimNamesIsLeftToItOnceTheClaimIsKnown(t *testing.T) {
	for _, workers := range []int{1, 16} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, pvbuild.NewPV("static", "1Gi"), pvbuild.NewClaim("a", "1Gi"), pvbuild.NewClaim("b", "1Gi", pvbuild.Naming("static")))
			w.config.Workers = workers
			w.start()
			w.settle()
			w.wantBound("b", "static")
			w.wantClaim("a", v1.ClaimPending)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewClaim("a", "1Gi"))
		w.start()
		release := w.client.Hold("PersistentVolumeClaim")
		w.create(pvbuild.NewClaim("b", "1Gi", pvbuild.Naming("static")))
		w.create(pvbuild.NewPV("static", "1Gi"))
		w.settle()
		w.wantBound("a", "static")
		release()
		w.settle()
		w.wantBound("a", "static")
		w.wantClaim("b", v1.ClaimPending)
		w.events.want(t, `b: Warning FailedBinding volume "static" already bound to a different claim.`)
	})
}
