package persistentvolume_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// Binders that choose at the same time, some of which give up, while events
// arrive: no volume is ever in two hands.
func TestConcurrentBindersNeverShareAVolume(t *testing.T) {
	const binders, each = 8, 50
	volumes := pool(binders * each)
	x := persistentvolume.NewIndex(volumes...)
	var owners sync.Map
	var wg sync.WaitGroup
	for b := range binders {
		wg.Go(func() {
			for i := range each {
				w := persistentvolume.Wanted{Claim: newClaim(fmt.Sprintf("c%d-%d", b, i), "1Gi", ofClass("pool"))}
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
					forClaim(w.Claim.Name, w.Claim.UID)(pv)
					r.Commit(pv)
				}
			}
		})
	}
	wg.Wait()
	if _, err := x.Match(persistentvolume.Wanted{Claim: newClaim("late", "1Gi", ofClass("pool"))}); !errors.Is(err, volume.ErrClaimUnbound) {
		t.Errorf("err = %v; want every volume to be taken", err)
	}
}

// A volume that goes and comes while it is reserved stays reserved.
func TestAReservationOutlivesItsVolume(t *testing.T) {
	x := persistentvolume.NewIndex(newPV("a", "1Gi"))
	first := persistentvolume.Wanted{Claim: newClaim("first", "1Gi")}
	r, err := x.Reserve(first)
	if err != nil {
		t.Fatal(err)
	}
	x.Delete("a")
	x.Put(newPV("a", "1Gi"))
	_, err = x.Reserve(persistentvolume.Wanted{Claim: newClaim("second", "1Gi")})
	if !errors.Is(err, volume.ErrClaimUnbound) || !strings.Contains(err.Error(), `belongs to another claim (a: ops/first, for which it is reserved)`) {
		t.Errorf("err = %v", err)
	}
	if _, err := x.Reserve(first); !errors.Is(err, persistentvolume.ErrReserved) || !strings.Contains(err.Error(), "ops/first") {
		t.Errorf("a second reservation: err = %v", err)
	}
	r.Release()
	if pv, err := x.Match(persistentvolume.Wanted{Claim: newClaim("second", "1Gi")}); err != nil || pv.Name != "a" {
		t.Errorf("after the release: %v, %v", nameOf(pv), err)
	}
}

// An event that was on its way when a binding was committed does not undo it.
func TestALateEventDoesNotUndoACommit(t *testing.T) {
	at := func(version string) pvOption {
		return func(pv *v1.PersistentVolume) { pv.UID, pv.ResourceVersion = "a", version }
	}
	x := persistentvolume.NewIndex(newPV("a", "1Gi", at("9")))
	r, err := x.Reserve(persistentvolume.Wanted{Claim: newClaim("first", "1Gi")})
	if err != nil {
		t.Fatal(err)
	}
	r.Commit(newPV("a", "1Gi", at("11"), forClaim("first", "uid-first")))
	x.Put(newPV("a", "1Gi", at("10")))
	second := persistentvolume.Wanted{Claim: newClaim("second", "1Gi")}
	if pv, err := x.Match(second); err == nil {
		t.Errorf("another claim gets %s", pv.Name)
	}
	x.Put(newPV("a", "1Gi", at("12"))) // its claimRef was taken away
	if _, err := x.Match(second); err != nil {
		t.Error(err)
	}
	if pv, ok := x.Volume("a"); !ok || pv.ResourceVersion != "12" {
		t.Errorf("Volume = %v, %v", pv, ok)
	}
}

// Stores that forget begin anew with low versions.
func TestAVolumeMadeAnewCounts(t *testing.T) {
	of := func(uid, version string) pvOption {
		return func(pv *v1.PersistentVolume) { pv.UID, pv.ResourceVersion = types.UID(uid), version }
	}
	x := persistentvolume.NewIndex(newPV("a", "9Gi", of("old", "9")))
	x.Put(newPV("a", "1Gi", of("new", "1")))
	if _, err := x.Match(persistentvolume.Wanted{Claim: newClaim("c", "5Gi")}); err == nil {
		t.Error("the size of the volume that was there before is believed")
	}
}

// What goes from one host leaves the others to be found.
func TestVolumesOfOtherHostsAreFound(t *testing.T) {
	x := persistentvolume.NewIndex(newPV("a", "1Gi", onHost("node1")), newPV("b", "1Gi", onHost("node2")))
	x.Delete("a")
	for node, want := range map[string]string{"node1": "", "node2": "b"} {
		pv, err := x.Match(persistentvolume.Wanted{Claim: newClaim("c", "1Gi"), NodeName: node})
		if nameOf(pv) != want || (err == nil) != (want != "") {
			t.Errorf("on %s: %v, %v", node, nameOf(pv), err)
		}
	}
}

func TestUnboundErrorCountsMany(t *testing.T) {
	var volumes []*v1.PersistentVolume
	for i := range 1000 {
		volumes = append(volumes, newPV(fmt.Sprintf("small-%03d", i), "1Gi", class("fast")), newPV(fmt.Sprintf("far-%03d", i), "9Gi", class("fast"), onHost("node2")))
	}
	_, err := persistentvolume.NewIndex(volumes...).Match(persistentvolume.Wanted{Claim: newClaim("c", "5Gi", ofClass("fast")), NodeName: "node1"})
	const want = `bind PersistentVolumeClaim "ops/c": the claim is not bound: too small (small-000: 1Gi of 5Gi; small-001: 1Gi of 5Gi; small-002: 1Gi of 5Gi and 997 more), ` +
		`not reachable from this node (far-000: not on node1; far-001: not on node1; far-002: not on node1 and 997 more)`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
func TestUnboundErrorNamesEveryReason(t *testing.T) {
	x := persistentvolume.NewIndex(newPV("a", "1Gi", class("fast")), newPV("b", "9Gi"), newPV("d", "2Gi", class("fast")),
		newPV("e", "3Gi", class("fast")), newPV("f", "4Gi", class("fast")))
	_, err := x.Match(persistentvolume.Wanted{Claim: newClaim("c", "5Gi", ofClass("fast")), NodeName: "node1"})
	const want = `bind PersistentVolumeClaim "ops/c": the claim is not bound: too small (a: 1Gi of 5Gi; d: 2Gi of 5Gi; e: 3Gi of 5Gi and 1 more), other storage class (b: class "")`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
