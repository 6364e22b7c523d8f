package meter

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
)

// On a tmpfs of known size every number is known.
func TestMeter(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,nr_inodes=100"); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(filepath.Join(dir, "tree"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, size := range map[string]int{"outside": 2 << 20, "tree/a": 1 << 20, "tree/b": 0} {
			if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Link(filepath.Join(dir, "tree/a"), filepath.Join(dir, "tree/hardlink")); err != nil {
			t.Fatal(err)
		}
		var meter Meter
		whole, err := meter.FileSystem(t.Context(), filepath.Join(dir, "tree"))
		if err != nil {
			t.Fatal(err)
		}
		wantQuantities(t, whole, map[string]int64{
			"Capacity": 4 << 20, "Used": 3 << 20, "Available": 1 << 20, "Inodes": 100,
			"InodesUsed": 100 - whole.InodesFree.Value(), "InodesFree": whole.InodesFree.Value(),
		})
		if used := whole.InodesUsed.Value(); used < 5 || used > 10 { // the kernel counts a hard link as well
			t.Errorf("%d inodes are used, want 5 or few more", used)
		}
		tree, err := meter.Tree(t.Context(), filepath.Join(dir, "tree"))
		if err != nil {
			t.Fatal(err)
		}
		wantQuantities(t, tree, map[string]int64{
			"Capacity": 4 << 20, "Used": 1 << 20, "Available": 1 << 20, "Inodes": 100,
			"InodesUsed": 3, "InodesFree": whole.InodesFree.Value(),
		})
		if tree.Time.Before(&whole.Time) || time.Since(tree.Time.Time) > time.Minute {
			t.Errorf("Time = %v", tree.Time)
		}
	})
}

func wantQuantities(t *testing.T, m *volume.Metrics, want map[string]int64) {
	t.Helper()
	for name, got := range map[string]*resource.Quantity{
		"Capacity": m.Capacity, "Used": m.Used, "Available": m.Available,
		"Inodes": m.Inodes, "InodesUsed": m.InodesUsed, "InodesFree": m.InodesFree,
	} {
		if got == nil || got.Value() != want[name] || got.Format != resource.BinarySI {
			t.Errorf("%s = %v, want %d in BinarySI", name, got, want[name])
		}
	}
}

func TestStatfsOfOddFileSystems(t *testing.T) {
	m := statfsMetrics(&unix.Statfs_t{Bsize: 1 << 20, Frsize: 4096, Blocks: 10, Bfree: 4, Bavail: 3}, metav1.Now())
	if m.Capacity.Value() != 10*4096 || m.Used.Value() != 6*4096 || m.Available.Value() != 3*4096 {
		t.Errorf("%v %v %v: the unit is not the fragment size", m.Capacity, m.Used, m.Available)
	}
	if m.Inodes != nil || m.InodesUsed != nil || m.InodesFree != nil {
		t.Error("inodes that are not counted must be unknown")
	}
	m = statfsMetrics(&unix.Statfs_t{Bsize: 1 << 20, Blocks: math.MaxUint64, Bfree: math.MaxUint64, Files: 1, Ffree: 2}, metav1.Now())
	if m.Capacity.Value() != math.MaxInt64 || m.Used.Value() != 0 || m.InodesUsed.Value() != 0 {
		t.Errorf("endless: %v %v %v", m.Capacity, m.Used, m.InodesUsed)
	}
}

func TestMeterOfMissingDirectory(t *testing.T) {
	var meter Meter
	missing := filepath.Join(t.TempDir(), "missing")
	for _, measure := range []func(context.Context, string) (*volume.Metrics, error){meter.FileSystem, meter.Tree} {
		_, err := measure(t.Context(), missing)
		failure, ok := errors.AsType[*Error](err)
		if !ok || failure.Path != missing || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("err = %v", err)
		}
	}
}

// A file system that does not answer costs one call, however often it is
// measured, and no other volume waits for it.
func TestMeterOfHungFileSystem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var meter Meter
		release := make(chan struct{})
		var calls atomic.Int32
		for range 50 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := meter.measure(ctx, meterKey{path: "/hung"}, func() (*volume.Metrics, error) {
				calls.Add(1)
				<-release
				return &volume.Metrics{}, nil
			})
			cancel()
			if _, ok := errors.AsType[*blockingcall.AbandonedError](err); !ok || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("err = %v, want that it was given up", err)
			}
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls for a hung file system, want 1", n)
		}
		if _, err := meter.FileSystem(t.Context(), "/"); err != nil {
			t.Errorf("another path: %v", err)
		}
		close(release)
	})
}
