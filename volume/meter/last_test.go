package meter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/diskusage"
	"github.com/podvol/podvol/volume"
)

// used is what a measurement returns in these tests.
func used(n int64) *volume.Metrics { return &volume.Metrics{Time: metav1.Now(), Used: binary(n)} }

// What was measured before is there while the file system hangs, with its own
// time; once it answers again, what it answers.
func TestMeterKeepsTheLastValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var meter Meter
		key := meterKey{path: "/volume", tree: true}
		measured := time.Now()
		if _, err := meter.measure(t.Context(), key, func() (*volume.Metrics, error) { return used(1), nil }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		release := make(chan struct{})
		hung := func() (*volume.Metrics, error) { <-release; return used(2), nil }
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			got, err := meter.measure(ctx, key, hung)
			cancel()
			failure, ok := errors.AsType[*Error](err)
			if !ok || got == nil || got.Used.Value() != 1 || !got.Time.Time.Equal(measured) || !failure.Measured.Time.Equal(measured) {
				t.Fatalf("%+v, %v, want the last value and its time", got, err)
			}
			if _, ok := errors.AsType[*blockingcall.AbandonedError](err); !ok || failure.AtLeast ||
				!strings.Contains(err.Error(), measured.UTC().Format(time.RFC3339)) {
				t.Errorf("err = %v", err)
			}
			got.Used.Set(99) // it is the caller's
		}
		if got, err := meter.measure(canceled(t), meterKey{path: "/volume"}, hung); got != nil || err == nil {
			t.Errorf("of its file system, which was never measured: %v, %v", got, err)
		}
		if got, err := meter.measure(canceled(t), key, hung); got == nil || err == nil {
			t.Errorf("with an ended context: %v, %v", got, err)
		}
		close(release)
		synctest.Wait()
		got, err := meter.measure(canceled(t), key, hung)
		if got == nil || got.Used.Value() != 2 || err == nil {
			t.Errorf("%+v, %v, want what the measurement came to that went on", got, err)
		}
		time.Sleep(keepMetrics + time.Minute)
		if got, err := meter.measure(canceled(t), key, hung); got != nil || err == nil {
			t.Errorf("much later: %+v, %v", got, err)
		}
	})
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// Who asks during a long measurement shares the next one.
func TestMeterSharesMeasurements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var meter Meter
		var calls atomic.Int64
		slow := func() (*volume.Metrics, error) {
			n := calls.Add(1)
			time.Sleep(time.Minute)
			return used(n), nil
		}
		var wait sync.WaitGroup
		for n := range 50 {
			wait.Go(func() {
				time.Sleep(time.Duration(n) * time.Second)
				got, err := meter.measure(t.Context(), meterKey{path: "/volume"}, slow)
				if err != nil || n > 0 && got.Used.Value() != 2 {
					t.Errorf("%+v, %v, want what was measured after the question", got, err)
				}
			})
		}
		wait.Wait()
		if n := calls.Load(); n != 2 {
			t.Errorf("%d measurements, want 2", n)
		}
	})
}

// A tree that is too large for its budget is at least as large as was counted,
// whatever it was before.
func TestMeterBudget(t *testing.T) {
	dir := t.TempDir()
	meter := Meter{TreeBudget: diskusage.Budget{Inodes: 10}}
	check := func(inodes int64) {
		t.Helper()
		got, err := meter.Tree(t.Context(), dir)
		failure, ok := errors.AsType[*Error](err)
		if !ok || got == nil || !failure.AtLeast || !failure.Measured.IsZero() {
			t.Fatalf("%+v, %v", got, err)
		}
		if _, ok := errors.AsType[*diskusage.BudgetError](err); !ok || got.InodesUsed.Value() != inodes || got.Capacity == nil {
			t.Errorf("%+v, %v", got, err)
		}
	}
	fill := func(files int) {
		for n := range files {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill(20)
	check(10)
	for n := range 20 {
		if err := os.Remove(filepath.Join(dir, fmt.Sprint(n))); err != nil {
			t.Fatal(err)
		}
	}
	fill(5)
	if got, err := meter.Tree(t.Context(), dir); err != nil || got.InodesUsed.Value() != 6 {
		t.Fatalf("%+v, %v", got, err)
	}
	fill(20)
	check(10)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := meter.Tree(t.Context(), dir); got != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of what is gone: %+v, %v", got, err)
	}
	if got, err := meter.Tree(canceled(t), dir); got != nil || err == nil {
		t.Errorf("of what is known to be gone: %+v, %v", got, err)
	}
}

// What a file system counts is not taken for what a walk has found.
func TestMeterOfACount(t *testing.T) {
	dir := t.TempDir()
	var meter Meter
	if got, err := meter.Counted(t.Context(), dir, func() (diskusage.Usage, error) { return diskusage.Usage{Inodes: 99}, nil }); err != nil || got.InodesUsed.Value() != 99 {
		t.Fatalf("%+v, %v", got, err)
	}
	if got, _ := meter.Tree(canceled(t), dir); got != nil && got.InodesUsed.Value() == 99 {
		t.Errorf("a walk found %+v", got)
	}
}

// A walk is longer than the patience of who asks: the next one learns what it
// came to.
func TestMeterOfImpatientCallers(t *testing.T) {
	dir := t.TempDir()
	for n := range 2000 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var meter Meter
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Microsecond)
		got, _ := meter.Tree(ctx, dir)
		cancel()
		if got == nil {
			continue
		}
		if got.InodesUsed.Value() != 2001 {
			t.Errorf("%v inodes", got.InodesUsed)
		}
		return
	}
}

// Of paths that nobody asks for any more, nothing is kept for ever.
func TestMeterForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var meter Meter
		for n := range 10 * fewMetrics {
			key := meterKey{path: fmt.Sprint(n)}
			if _, err := meter.measure(t.Context(), key, func() (*volume.Metrics, error) { return used(1), nil }); err != nil {
				t.Fatal(err)
			}
			time.Sleep(keepMetrics / 10)
		}
		if n := len(meter.last.of); n > 2*fewMetrics {
			t.Errorf("%d values are kept", n)
		}
	})
}
