package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/bits"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/diskusage"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/flight"
)

// Meter measures directories for plugins' metrics. Of each path at most one
// measurement is under way, however often it is asked for, so that a server
// that does not answer costs one thread and not one a scrape (kubernetes issues
// 62917, 122491). A plugin owns one and shares it among its volumes. Its zero
// value is ready; it must not be copied after first use. Its methods are safe
// for concurrent use and return promptly when ctx ends.
type Meter struct {
	calls flight.Group[string]
}

// MeterError is a failed measurement.
type MeterError struct {
	// Path is the directory that was to be measured.
	Path string
	// Err is the reason: [fs.ErrNotExist], a *[flight.AbandonedError] when ctx
	// ended first, or what the file system answered.
	Err error
}

func (e *MeterError) Error() string {
	text := fmt.Sprintf("measure the volume at %s: %v", e.Path, e.Err)
	if _, hung := errors.AsType[*flight.AbandonedError](e.Err); hung {
		return text + "; the file system has not answered in time: see whether its server or disk is alive"
	}
	if errors.Is(e.Err, fs.ErrNotExist) {
		return text + "; the volume is not set up"
	}
	return text
}

// Unwrap returns the reason.
func (e *MeterError) Unwrap() error { return e.Err }

// FileSystem returns size and use of the whole file system at path (statfs(2)):
// what df says. The numbers of inodes are unknown, nil, where the file system
// does not count them. The error is a *[MeterError].
func (m *Meter) FileSystem(ctx context.Context, path string) (*Metrics, error) {
	return m.measure(ctx, path, fileSystem)
}

// Tree returns the space and the inodes that the tree at path itself occupies
// ([diskusage.Walk]) as Used and InodesUsed, and of its file system capacity
// and what is available. The error is a *[MeterError].
func (m *Meter) Tree(ctx context.Context, path string) (*Metrics, error) {
	return m.measure(ctx, path, func(path string) (*Metrics, error) {
		metrics, err := fileSystem(path)
		if err != nil {
			return nil, err
		}
		usage, err := diskusage.Walk(ctx, path)
		if err != nil {
			return nil, err
		}
		metrics.Used = binary(usage.Bytes)
		metrics.InodesUsed = binary(usage.Inodes)
		return metrics, nil
	})
}

func (m *Meter) measure(ctx context.Context, path string, call func(string) (*Metrics, error)) (*Metrics, error) {
	var metrics *Metrics
	err := m.calls.Do(ctx, path, func() (err error) {
		metrics, err = call(path)
		return err
	})
	if err != nil {
		return nil, &MeterError{Path: path, Err: err}
	}
	return metrics, nil
}

func fileSystem(path string) (*Metrics, error) {
	var st unix.Statfs_t
	if err := eintr.Do(func() error { return unix.Statfs(path, &st) }); err != nil {
		return nil, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return statfsMetrics(&st, metav1.Now()), nil
}

func statfsMetrics(st *unix.Statfs_t, now metav1.Time) *Metrics {
	unit := int64(st.Frsize) // what blocks are counted in; kernels before 2.6 left it 0
	if unit <= 0 {
		unit = int64(st.Bsize)
	}
	metrics := &Metrics{
		Time:      now,
		Capacity:  blocks(st.Blocks, unit),
		Available: blocks(st.Bavail, unit),
		Used:      blocks(st.Blocks-min(st.Bfree, st.Blocks), unit),
	}
	if st.Files > 0 {
		metrics.Inodes = blocks(st.Files, 1)
		metrics.InodesFree = blocks(st.Ffree, 1)
		metrics.InodesUsed = blocks(st.Files-min(st.Ffree, st.Files), 1)
	}
	return metrics
}

// blocks is n blocks of a size in bytes. Some file systems report sizes
// without end; these become the largest quantity.
func blocks(n uint64, size int64) *resource.Quantity {
	high, low := bits.Mul64(n, uint64(size))
	if high != 0 || low > math.MaxInt64 {
		return binary(math.MaxInt64)
	}
	return binary(int64(low))
}

func binary(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
