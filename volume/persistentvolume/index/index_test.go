package index_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// Binders that choose at the same time, some of which give up, while events
// arrive: no volume is ever in two hands.
func TestConcurrentBindersNeverShareAVolume(t *testing.T) {
	const binders, each = 8, 50
	volumes := pvbuild.Pool(binders * each)
	x := index.New(volumes...)
	var owners sync.Map
	var wg sync.WaitGroup
	for b := range binders {
		wg.Go(func() {
			for i := range each {
				w := index.Wanted{Claim: pvbuild.NewClaim(fmt.Sprintf("c%d-%d", b, i), "1Gi", pvbuild.OfClass("pool"))}
				for try := range 3 {
					r, err := x.Reserve(w)
					if err != nil {
						t.Error(err)
						return
					}
					name := r.Volume().Name
					if other, taken := owners.LoadOrStore(name, w.Claim.Name); taken {
						t.Errorf("%s reserved %s of %v", w.Claim.Name, name, other)
					}
					x.Put(r.Volume()) // an event that changes nothing
					if try < 2 {
						owners.Delete(name)
						r.Release()
						continue
					}
					pv := r.Volume().DeepCopy()
					pvbuild.ForClaim(w.Claim.Name, w.Claim.UID)(pv)
					r.Commit(pv)
				}
			}
		})
	}
	wg.Wait()
	if _, err := x.Match(index.Wanted{Claim: pvbuild.NewClaim("late", "1Gi", pvbuild.OfClass("pool"))}); !errors.Is(err, claimbinding.ErrUnbound) {
		t.Errorf("err = %v; want every volume to be taken", err)
	}
}

// A volume that goes and comes while it is reserved stays reserved.
func TestAReservationOutlivesItsVolume(t *testing.T) {
	x := index.New(pvbuild.NewPV("a", "1Gi"))
	first := index.Wanted{Claim: pvbuild.NewClaim("first", "1Gi")}
	r, err := x.Reserve(first)
	if err != nil {
		t.Fatal(err)
	}
	x.Delete("a")
	x.Put(pvbuild.NewPV("a", "1Gi"))
	_, err = x.Reserve(index.Wanted{Claim: pvbuild.NewClaim("second", "1Gi")})
	if !errors.Is(err, claimbinding.ErrUnbound) || !strings.Contains(err.Error(), `belongs to another claim (a: ops/first, for which it is reserved)`) {
		t.Errorf("err = %v", err)
	}
	if _, err := x.Reserve(first); !errors.Is(err, index.ErrReserved) || !strings.Contains(err.Error(), "ops/first") {
		t.Errorf("a second reservation: err = %v", err)
	}
	r.Release()
	if pv, err := x.Match(index.Wanted{Claim: pvbuild.NewClaim("second", "1Gi")}); err != nil || pv.Name != "a" {
		t.Errorf("after the release: %v, %v", pvbuild.VolumeName(pv), err)
	}
}

// An event that was on its way when a binding was committed does not undo it.
func TestALateEventDoesNotUndoACommit(t *testing.T) {
	at := func(version string) pvbuild.Option {
		return func(pv *v1.PersistentVolume) { pv.UID, pv.ResourceVersion = "a", version }
	}
	x := index.New(pvbuild.NewPV("a", "1Gi", at("9")))
	r, err := x.Reserve(index.Wanted{Claim: pvbuild.NewClaim("first", "1Gi")})
	if err != nil {
		t.Fatal(err)
	}
	r.Commit(pvbuild.NewPV("a", "1Gi", at("11"), pvbuild.ForClaim("first", "uid-first")))
	x.Put(pvbuild.NewPV("a", "1Gi", at("10")))
	second := index.Wanted{Claim: pvbuild.NewClaim("second", "1Gi")}
	if pv, err := x.Match(second); err == nil {
		t.Errorf("another claim gets %s", pv.Name)
	}
	x.Put(pvbuild.NewPV("a", "1Gi", at("12"))) // its claimRef was taken away
	if _, err := x.Match(second); err != nil {
		t.Error(err)
	}
	if pv, ok := x.Volume("a"); !ok || pv.ResourceVersion != "12" {
		t.Errorf("Volume = %v, %v", pv, ok)
	}
}

// Stores that forget begin anew with low versions.
func TestAVolumeMadeAnewCounts(t *testing.T) {
	of := func(uid, version string) pvbuild.Option {
		return func(pv *v1.PersistentVolume) { pv.UID, pv.ResourceVersion = types.UID(uid), version }
	}
	x := index.New(pvbuild.NewPV("a", "9Gi", of("old", "9")))
	x.Put(pvbuild.NewPV("a", "1Gi", of("new", "1")))
	if _, err := x.Match(index.Wanted{Claim: pvbuild.NewClaim("c", "5Gi")}); err == nil {
		t.Error("the size of the volume that was there before is believed")
	}
}

// What goes from one host leaves the others to be found.
func TestVolumesOfOtherHostsAreFound(t *testing.T) {
	x := index.New(pvbuild.NewPV("a", "1Gi", pvbuild.OnHost("node1")), pvbuild.NewPV("b", "1Gi", pvbuild.OnHost("node2")))
	x.Delete("a")
	for node, want := range map[string]string{"node1": "", "node2": "b"} {
		pv, err := x.Match(index.Wanted{Claim: pvbuild.NewClaim("c", "1Gi"), NodeName: node})
		if pvbuild.VolumeName(pv) != want || (err == nil) != (want != "") {
			t.Errorf("on %s: %v, %v", node, pvbuild.VolumeName(pv), err)
		}
	}
}

func TestUnboundErrorCountsMany(t *testing.T) {
	var volumes []*v1.PersistentVolume
	for i := range 1000 {
		volumes = append(volumes, pvbuild.NewPV(fmt.Sprintf("small-%03d", i), "1Gi", pvbuild.Class("fast")), pvbuild.NewPV(fmt.Sprintf("far-%03d", i), "9Gi", pvbuild.Class("fast"), pvbuild.OnHost("node2")))
	}
	_, err := index.New(volumes...).Match(index.Wanted{Claim: pvbuild.NewClaim("c", "5Gi", pvbuild.OfClass("fast")), NodeName: "node1"})
	const want = `bind PersistentVolumeClaim "ops/c": the claim is not bound: too small (small-000: 1Gi of 5Gi; small-001: 1Gi of 5Gi; small-002: 1Gi of 5Gi and 997 more), ` +
		`not reachable from this node (far-000: not on node1; far-001: not on node1; far-002: not on node1 and 997 more)`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
func TestUnboundErrorNamesEveryReason(t *testing.T) {
	x := index.New(pvbuild.NewPV("a", "1Gi", pvbuild.Class("fast")), pvbuild.NewPV("b", "9Gi"), pvbuild.NewPV("d", "2Gi", pvbuild.Class("fast")),
		pvbuild.NewPV("e", "3Gi", pvbuild.Class("fast")), pvbuild.NewPV("f", "4Gi", pvbuild.Class("fast")))
	_, err := x.Match(index.Wanted{Claim: pvbuild.NewClaim("c", "5Gi", pvbuild.OfClass("fast")), NodeName: "node1"})
	const want = `bind PersistentVolumeClaim "ops/c": the claim is not bound: too small (a: 1Gi of 5Gi; d: 2Gi of 5Gi; e: 3Gi of 5Gi and 1 more), other storage class (b: class "")`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
