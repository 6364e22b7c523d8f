package persistentvolume_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/persisted"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// BenchmarkRecordedBinding creates and binds a thousand claims that are recorded
// on the disk of the temporary directory, and opens their records again.
func BenchmarkRecordedBinding(b *testing.B) {
	const count = 1000
	for _, writers := range []int{1, 16} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			var created, bound, opened time.Duration
			for b.Loop() {
				dir := b.TempDir()
				r := openRecords(b, dir)
				began := time.Now()
				createMany(b, r, count, writers)
				created += time.Since(began)
				began = time.Now()
				bindRecorded(b, r)
				bound += time.Since(began)
				if c := pvbuild.GetClaim(b, r, "c-000999"); c.Spec.VolumeName == "" {
					b.Fatal("it is not bound")
				}
				if err := r.Close(); err != nil {
					b.Fatal(err)
				}
				began = time.Now()
				if err := openRecords(b, dir).Close(); err != nil {
					b.Fatal(err)
				}
				opened += time.Since(began)
			}
			b.ReportMetric(created.Seconds()/float64(b.N), "s/create")
			b.ReportMetric(bound.Seconds()/float64(b.N), "s/bind")
			b.ReportMetric(opened.Seconds()/float64(b.N), "s/open")
		})
	}
}

func openRecords(tb testing.TB, dir string) *persisted.Store {
	tb.Helper()
	r, err := persisted.Open(context.Background(), objects.NewStore(), dir)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// createMany creates pairs of a volume and a claim, by some writers at a time.
func createMany(tb testing.TB, r *persisted.Store, count, writers int) {
	tb.Helper()
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := w; i < count; i += writers {
				_, pvErr := r.Create(context.Background(), pvbuild.NewPV(fmt.Sprintf("pv-%06d", i), "1Gi"))
				_, claimErr := r.Create(context.Background(), pvbuild.NewClaim(fmt.Sprintf("c-%06d", i), "1Gi"))
				if pvErr != nil || claimErr != nil {
					tb.Error(pvErr, claimErr)
				}
			}
		})
	}
	all.Wait()
}

func bindRecorded(tb testing.TB, r *persisted.Store) {
	tb.Helper()
	c := persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: r})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	if err := c.Idle(ctx); err != nil {
		tb.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		tb.Error(err)
	}
}
