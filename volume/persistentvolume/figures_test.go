package persistentvolume_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/figures"
	"github.com/podvol/podvol/volume/persistentvolume"
)

const (
	fewVolumes  = 1000
	manyVolumes = 100_000
)

// manyPVs returns volumes as a cluster has them: of a few sizes, classes and
// access modes, a third of them local to one of a hundred nodes.
func manyPVs(count int) []*v1.PersistentVolume {
	volumes := make([]*v1.PersistentVolume, count)
	for i := range volumes {
		options := []pvOption{class([]string{"fast", "slow"}[i%2]), labelled("disk", []string{"ssd", "hdd", "nvme", "tape"}[i/2%4]), inPhase(v1.VolumeAvailable)}
		if i%3 == 0 {
			options = append(options, onHost(fmt.Sprintf("node%d", i%100)))
		}
		if i%5 == 0 {
			options = append(options, withModes(rwo))
		}
		volumes[i] = newPV(fmt.Sprintf("pv-%06d", i), fmt.Sprintf("%dGi", 1+i%20), options...)
	}
	rand.Shuffle(count, func(i, j int) { volumes[i], volumes[j] = volumes[j], volumes[i] })
	return volumes
}

// releasedPVs returns volumes that would fit, were it not for the claims that
// are gone.
func releasedPVs(count int) []*v1.PersistentVolume {
	volumes := manyPVs(count)
	for i, pv := range volumes {
		pv.Name = fmt.Sprintf("old-%06d", i)
		forClaim(fmt.Sprintf("old-%d", i), "gone")(pv)
		inPhase(v1.VolumeReleased)(pv)
	}
	return volumes
}

func manyClaims(count int) []persistentvolume.Wanted {
	wanted := make([]persistentvolume.Wanted, count)
	for i := range wanted {
		c := newClaim(fmt.Sprintf("c-%06d", i), "1Gi", ofClass([]string{"fast", "slow"}[i%2]))
		if i%10 == 0 {
			selectingPairs(map[string]string{"disk": "ssd"})(c)
		}
		wanted[i] = persistentvolume.Wanted{Claim: c, NodeName: fmt.Sprintf("node%d", i%100)}
	}
	return wanted
}

// bindAll binds as a controller would, with a store that answers at once.
func bindAll(tb testing.TB, x *persistentvolume.Index, wanted []persistentvolume.Wanted) {
	tb.Helper()
	for _, w := range wanted {
		r, err := x.Reserve(w)
		if err != nil {
			tb.Fatal(err)
		}
		pv := r.Volume().DeepCopy()
		forClaim(w.Claim.Name, w.Claim.UID)(pv)
		r.Commit(pv)
	}
}

// perClaim measures the time of one claim in the fastest of some rounds.
func perClaim(tb testing.TB, rounds int, volumes []*v1.PersistentVolume, wanted []persistentvolume.Wanted) time.Duration {
	tb.Helper()
	var best time.Duration
	for range rounds {
		x := persistentvolume.NewIndex(volumes...)
		runtime.GC()
		start := time.Now()
		bindAll(tb, x, wanted)
		if took := time.Since(start) / time.Duration(len(wanted)); best == 0 || took < best {
			best = took
		}
	}
	return best
}

// TestFigures measures binding in memory:
//
//	PODVOL_ASSERT_FIGURES=1 go test ./volume/persistentvolume -run Figures -v
func TestFigures(t *testing.T) {
	slack, asserted := figures.Slack(t)
	rounds, most := 1, 2*fewVolumes
	if asserted {
		rounds, most = 5, manyVolumes
	}
	limit := func(what string, got, limit float64) {
		t.Helper()
		t.Logf("%-52s %10.3f (limit %v)", what, got, limit)
		if asserted && got > limit*slack {
			t.Errorf("%s: %.3f is more than %v times %v", what, got, slack, limit)
		}
	}
	for what, volumes := range map[string][]*v1.PersistentVolume{
		"10,000 claims on 10,000 volumes, seconds":               pool(10_000),
		"the same with 10,000 released ones in the way, seconds": append(releasedPVs(10_000), pool(10_000)...),
	} {
		var best time.Duration
		for range rounds {
			start := time.Now()
			bindAll(t, persistentvolume.NewIndex(volumes...), poolClaims(10_000))
			if took := time.Since(start); best == 0 || took < best {
				best = took
			}
		}
		limit(what, best.Seconds(), 1)
	}

	wanted := manyClaims(fewVolumes / 4)
	few, many := manyPVs(fewVolumes), manyPVs(most)
	perFew, perMany := perClaim(t, rounds, few, wanted), perClaim(t, rounds, many, wanted)
	perReleased := perClaim(t, rounds, append(releasedPVs(10_000), few...), wanted)
	t.Logf("per claim: %v of %d volumes, %v of %d, %v with 10,000 released", perFew, fewVolumes, perMany, most, perReleased)
	limit("many volumes in the time of 1,000", float64(perMany)/float64(perFew), 2)
	limit("10,000 released and 1,000 in the time of 1,000", float64(perReleased)/float64(perFew), 2)

	plain := &scan{volumes: manyPVs(10_000)}
	index := perClaim(t, rounds, plain.volumes, wanted)
	var scanned time.Duration
	for range rounds {
		start := time.Now()
		for _, w := range wanted[:20] {
			if pv, _ := plain.match(w); pv == nil {
				t.Fatal("the scan found nothing")
			}
		}
		if took := time.Since(start) / 20; scanned == 0 || took < scanned {
			scanned = took
		}
	}
	t.Logf("of 10,000 volumes: %v by index, bound; %v by scan, only found", index, scanned)
	limit("100 claims by index in the time of one by scan", 100*float64(index)/float64(scanned), 1)

	unmatched := time.Duration(0)
	x := persistentvolume.NewIndex(many...)
	huge := persistentvolume.Wanted{Claim: newClaim("huge", "1Pi", ofClass("fast")), NodeName: "node1"}
	for range 20 * rounds {
		start := time.Now()
		if _, err := x.Match(huge); err == nil {
			t.Fatal("nothing is that large")
		}
		if took := time.Since(start); unmatched == 0 || took < unmatched {
			unmatched = took
		}
	}
	limit("why none of many volumes fits, milliseconds", unmatched.Seconds()*1000, 1)
}

// pool returns volumes that fit the claims of poolClaims, each one.
func pool(count int) []*v1.PersistentVolume {
	volumes := make([]*v1.PersistentVolume, count)
	for i := range volumes {
		volumes[i] = newPV(fmt.Sprintf("pool-%06d", i), fmt.Sprintf("%dGi", 1+i%20), class("pool"))
	}
	rand.Shuffle(count, func(i, j int) { volumes[i], volumes[j] = volumes[j], volumes[i] })
	return volumes
}

func poolClaims(count int) []persistentvolume.Wanted {
	wanted := make([]persistentvolume.Wanted, count)
	for i := range wanted {
		wanted[i].Claim = newClaim(fmt.Sprintf("c-%06d", i), fmt.Sprintf("%dGi", 1+i%20), ofClass("pool"))
	}
	return wanted
}

// BenchmarkMatch finds the volume of one claim by the index and by the scan.
func BenchmarkMatch(b *testing.B) {
	wanted := manyClaims(100)
	for _, count := range []int{fewVolumes, manyVolumes} {
		volumes := manyPVs(count)
		x := persistentvolume.NewIndex(volumes...)
		b.Run(fmt.Sprintf("index/%d", count), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := x.Match(wanted[i%len(wanted)]); err != nil {
					b.Fatal(err)
				}
			}
		})
		plain := &scan{volumes: volumes}
		b.Run(fmt.Sprintf("scan/%d", count), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if pv, _ := plain.match(wanted[i%len(wanted)]); pv == nil {
					b.Fatal("nothing found")
				}
			}
		})
	}
}

// BenchmarkPut adds volumes to an index, one after the other.
func BenchmarkPut(b *testing.B) {
	volumes := manyPVs(manyVolumes)
	var x *persistentvolume.Index
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%manyVolumes == 0 {
			x = persistentvolume.NewIndex()
		}
		x.Put(volumes[i%manyVolumes])
	}
}
