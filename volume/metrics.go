package volume

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MetricsProvider measures a volume.
type MetricsProvider interface {
	// GetMetrics measures the volume and returns promptly when ctx ends. The
	// error matches [ErrMetricsUnsupported] if this kind of volume has no
	// metrics. There may be metrics beside an error. They are of an earlier time
	// (see their Time) or incomplete, as the error says; [meter.Meter] does so.
	GetMetrics(ctx context.Context) (*Metrics, error)
}

// Metrics are the size and use of a volume. A nil field means unknown.
type Metrics struct {
	// Time is the time of the measurement. For a walk it is the time at which it
	// began.
	Time metav1.Time
	// Used, Capacity and Available are in bytes. Used of a walked volume is the
	// space of its files. Used of a file system is the space in use in all.
	Used, Capacity, Available *resource.Quantity
	// InodesUsed, Inodes and InodesFree are numbers of inodes.
	InodesUsed, Inodes, InodesFree *resource.Quantity
}

// ErrMetricsUnsupported says that a volume has no metrics of its own.
var ErrMetricsUnsupported = errors.New("this kind of volume has no metrics")

// NoMetrics is the MetricsProvider of volumes without metrics.
type NoMetrics struct{}

// GetMetrics returns [ErrMetricsUnsupported].
func (NoMetrics) GetMetrics(context.Context) (*Metrics, error) { return nil, ErrMetricsUnsupported }
