// Package meter measures volumes for the metrics of plugins: file systems as df does,
// and trees as du does. A server that does not answer costs one thread.
package meter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/bits"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/diskusage"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume"
)

// MaxTreeTime bounds a walk. The walk goes on when its caller has given up.
const MaxTreeTime = 2 * time.Minute

// Meter measures directories for the metrics of plugins. A plugin owns one Meter
// and shares it among its volumes.
//
//   - For each path at most one measurement is under way, however often callers
//     ask. So a server that does not answer costs one thread, and a walk at most
//     four. It does not cost one thread per scrape (kubernetes issues 62917,
//     122491).
//   - A caller may ask while an earlier measurement is under way. It gets the
//     result of the next measurement, and shares it with all callers meanwhile.
//   - A measurement may not finish before ctx ends. Then the last metrics are
//     returned beside the error, with their own Time, if they are at most an hour
//     old; see [Error].
//   - A walk may use up its budget. Then what it has found is returned beside the
//     error: older metrics might hide that a tree has grown.
//   - A walk goes on within its budget when its caller has left. So there is a
//     last value next time, however short the callers' contexts are.
//   - The zero value is ready. A Meter must not be copied after first use.
//   - Its methods are safe for concurrent use and return promptly when ctx ends.
type Meter struct {
	// TreeBudget bounds each walk of [Meter.Tree]. A Time of zero means two
	// minutes. It must not be changed after first use.
	TreeBudget diskusage.Budget

	calls blockingcall.Group[string]
	last  lastMetrics
}

// Error is a failed measurement.
type Error struct {
	// Path is the directory that was to be measured.
	Path string
	// Measured is the time of the metrics that are returned beside this error. It
	// is zero if there are none, and if AtLeast is set.
	Measured metav1.Time
	// AtLeast says that the metrics beside this error are from an unfinished
	// walk. The true use is at least that much.
	AtLeast bool
	// Err is the reason:
	//
	//   - [fs.ErrNotExist];
	//   - a *[blockingcall.AbandonedError] when ctx ended first;
	//   - a *[diskusage.BudgetError];
	//   - or the error of the file system.
	Err error
}

func (e *Error) Error() string {
	text := fmt.Sprintf("measure the volume at %s: %v", e.Path, e.Err)
	if isAbandoned(e.Err) {
		text += "; the file system has not answered in time: see whether its server or disk is alive, or whether it has very many files"
	}
	switch {
	case errors.Is(e.Err, fs.ErrNotExist):
		text += "; the volume is not set up"
	case !e.Measured.IsZero():
		text += "; the last numbers known are of " + e.Measured.UTC().Format(time.RFC3339)
	case e.AtLeast:
		text += "; the numbers given are lower bounds"
	}
	return text
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// FileSystem returns the size and use of the whole file system at path
// (statfs(2)), as df does. The numbers of inodes are nil, for unknown, if the
// file system does not count them. The error is a *[Error]. It says whether
// there are older metrics beside it.
func (m *Meter) FileSystem(ctx context.Context, path string) (*volume.Metrics, error) {
	return m.measure(ctx, meterKey{path: path}, func() (*volume.Metrics, error) { return fileSystem(path) })
}

// Tree measures the tree at path. Used and InodesUsed are the space and the
// inodes of the tree itself ([diskusage.WalkWithin]). Capacity and the available
// space are its file system's. The error is a *[Error]. It says whether there are
// older or incomplete metrics beside it.
func (m *Meter) Tree(ctx context.Context, path string) (*volume.Metrics, error) {
	budget := m.TreeBudget
	if budget.Time == 0 {
		budget.Time = MaxTreeTime
	}
	walk := context.WithoutCancel(ctx)
	return m.measure(ctx, meterKey{path: path, tree: true}, func() (*volume.Metrics, error) { return tree(walk, path, budget) })
}

// Counted measures a tree whose file system counts what it takes, by a call that asks for
// it. Everything else is as with [Meter.Tree], which never returns what was only counted.
func (m *Meter) Counted(ctx context.Context, path string, count func() (diskusage.Usage, error)) (*volume.Metrics, error) {
	return m.measure(ctx, meterKey{path: path, counted: true}, func() (*volume.Metrics, error) {
		return fileSystemWith(path, count)
	})
}

// tree returns metrics beside a *[diskusage.BudgetError], too.
func tree(ctx context.Context, path string, budget diskusage.Budget) (*volume.Metrics, error) {
	return fileSystemWith(path, func() (diskusage.Usage, error) { return diskusage.WalkWithin(ctx, path, budget) })
}

// fileSystemWith returns the file system's metrics, with the use of a tree in it.
func fileSystemWith(path string, use func() (diskusage.Usage, error)) (*volume.Metrics, error) {
	metrics, err := fileSystem(path)
	if err != nil {
		return nil, err
	}
	usage, err := use()
	if err != nil && !isUnfinished(err) {
		return nil, err
	}
	metrics.Used = binary(usage.Bytes)
	metrics.InodesUsed = binary(usage.Inodes)
	return metrics, err
}

func (m *Meter) measure(ctx context.Context, key meterKey, call func() (*volume.Metrics, error)) (*volume.Metrics, error) {
	asked := time.Now()
	var metrics *volume.Metrics // not to be read before the call is over
	err := m.calls.Do(ctx, key.path, func() (err error) {
		var known bool
		if metrics, known = m.last.since(key, asked); known {
			return nil
		}
		began := time.Now()
		if metrics, err = call(); err == nil {
			m.last.keep(key, began, metrics)
		}
		if errors.Is(err, fs.ErrNotExist) {
			m.last.forget(key)
		}
		return err
	})
	if err == nil {
		return metrics, nil
	}
	failure := &Error{Path: key.path, Err: err, AtLeast: isUnfinished(err)}
	if failure.AtLeast {
		return metrics, failure
	}
	if last, known := m.last.since(key, asked.Add(-keepMetrics)); known && isAbandoned(err) {
		failure.Measured = last.Time
		return last, failure
	}
	return nil, failure
}

func isAbandoned(err error) bool {
	_, ok := errors.AsType[*blockingcall.AbandonedError](err)
	return ok
}

func isUnfinished(err error) bool {
	_, ok := errors.AsType[*diskusage.BudgetError](err)
	return ok
}

func fileSystem(path string) (*volume.Metrics, error) {
	var st unix.Statfs_t
	if err := eintr.Do(func() error { return unix.Statfs(path, &st) }); err != nil {
		return nil, &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	return statfsMetrics(&st, metav1.Now()), nil
}

func statfsMetrics(st *unix.Statfs_t, now metav1.Time) *volume.Metrics {
	unit := int64(st.Frsize) // what blocks are counted in; kernels before 2.6 left it 0
	if unit <= 0 {
		unit = int64(st.Bsize)
	}
	metrics := &volume.Metrics{
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

// blocks is n blocks of a size in bytes. Some file systems report absurdly large
// sizes; these become the largest quantity.
func blocks(n uint64, size int64) *resource.Quantity {
	high, low := bits.Mul64(n, uint64(size))
	if high != 0 || low > math.MaxInt64 {
		return binary(math.MaxInt64)
	}
	return binary(int64(low))
}

func binary(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
