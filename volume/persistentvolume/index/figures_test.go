package index_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
)

// bindAll binds as a controller would, with a store that answers at once.
func bindAll(tb testing.TB, x *index.Index, wanted []index.Wanted) {
	tb.Helper()
	table := reservation.New(reservation.Config{Index: x, Waiting: index.NewWaiting(), Queue: noQueue{}})
	for _, w := range wanted {
		r, err := table.Reserve(w)
		if err != nil {
			tb.Fatal(err)
		}
		pv := r.Volume().DeepCopy()
		pvbuild.ForClaim(w.Claim.Name, w.Claim.UID)(pv)
		r.Assume(pv)
	}
}

// perClaim measures the time of one claim in the fastest of some rounds.
func perClaim(tb testing.TB, rounds int, volumes []*v1.PersistentVolume, wanted []index.Wanted) time.Duration {
	tb.Helper()
	var best time.Duration
	for range rounds {
		x := index.New(volumes...)
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
//	PODVOL_ASSERT_FIGURES=1 go test ./volume/persistentvolume/index -run Figures -v
func TestFigures(t *testing.T) {
	_, asserted := figures.Slack(t)
	rounds, most := 1, 2*pvbuild.FewVolumes
	if asserted {
		rounds, most = 5, pvbuild.ManyVolumes
	}
	for what, volumes := range map[string][]*v1.PersistentVolume{
		"10,000 claims on 10,000 volumes":               pvbuild.Pool(10_000),
		"the same with 10,000 released ones in the way": append(pvbuild.ReleasedPVs(10_000), pvbuild.Pool(10_000)...),
	} {
		var best time.Duration
		for range rounds {
			start := time.Now()
			bindAll(t, index.New(volumes...), pvbuild.PoolClaims(10_000))
			if took := time.Since(start); best == 0 || took < best {
				best = took
			}
		}
		figures.Report(t, figures.Row{What: what, Unit: figures.Wall, Ours: best.Seconds(), Limit: 1})
	}

	wanted := pvbuild.ManyClaims(pvbuild.FewVolumes / 4)
	few, many := pvbuild.ManyPVs(pvbuild.FewVolumes), pvbuild.ManyPVs(most)
	perFew, perMany := perClaim(t, rounds, few, wanted), perClaim(t, rounds, many, wanted)
	perReleased := perClaim(t, rounds, append(pvbuild.ReleasedPVs(10_000), few...), wanted)
	figures.ReportCurve(t, figures.Curve{What: "binding of a claim", Of: "volumes to choose from", Unit: figures.Wall, Limit: 2,
		Points: []figures.Point{{X: pvbuild.FewVolumes, Y: perFew.Seconds()}, {X: float64(most), Y: perMany.Seconds()}}})
	figures.Report(t, figures.Times("binding of a claim, with 10,000 released volumes", figures.Wall, perReleased, "without", perFew, 2))

	plain := &pvbuild.Scan{Volumes: pvbuild.ManyPVs(10_000)}
	indexed := perClaim(t, rounds, plain.Volumes, wanted)
	var scanned time.Duration
	for range rounds {
		start := time.Now()
		for _, w := range wanted[:20] {
			if pv, _ := plain.Match(w); pv == nil {
				t.Fatal("the scan found nothing")
			}
		}
		if took := time.Since(start) / 20; scanned == 0 || took < scanned {
			scanned = took
		}
	}
	figures.Report(t, figures.Times("binding of a claim, among 10,000 volumes", figures.Wall, indexed, "kubelet (linear search)", scanned, 0.01))

	unmatched := time.Duration(0)
	x := index.New(many...)
	huge := index.Wanted{Claim: pvbuild.NewClaim("huge", "1Pi", pvbuild.OfClass("fast")), NodeName: "node1"}
	for range 20 * rounds {
		start := time.Now()
		if _, err := x.Match(huge); err == nil {
			t.Fatal("nothing is that large")
		}
		if took := time.Since(start); unmatched == 0 || took < unmatched {
			unmatched = took
		}
	}
	figures.Report(t, figures.Row{What: "why none of many volumes fits", Unit: figures.Wall, Ours: unmatched.Seconds(), Limit: 1e-3})
}

// BenchmarkMatch finds the volume of one claim by the index and by the scan.
func BenchmarkMatch(b *testing.B) {
	wanted := pvbuild.ManyClaims(100)
	for _, count := range []int{pvbuild.FewVolumes, pvbuild.ManyVolumes} {
		volumes := pvbuild.ManyPVs(count)
		x := index.New(volumes...)
		b.Run(fmt.Sprintf("index/%d", count), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := x.Match(wanted[i%len(wanted)]); err != nil {
					b.Fatal(err)
				}
			}
		})
		plain := &pvbuild.Scan{Volumes: volumes}
		b.Run(fmt.Sprintf("scan/%d", count), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if pv, _ := plain.Match(wanted[i%len(wanted)]); pv == nil {
					b.Fatal("nothing found")
				}
			}
		})
	}
}

// BenchmarkPut adds volumes to an index, one after the other.
func BenchmarkPut(b *testing.B) {
	volumes := pvbuild.ManyPVs(pvbuild.ManyVolumes)
	var x *index.Index
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%pvbuild.ManyVolumes == 0 {
			x = index.New()
		}
		x.Put(volumes[i%pvbuild.ManyVolumes])
	}
}
