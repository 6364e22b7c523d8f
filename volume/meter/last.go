package meter

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/podvol/podvol/volume"
)

const (
	// keepMetrics is the age up to which the last metrics of a path are used.
	keepMetrics = time.Hour
	// fewMetrics is how many metrics are kept whatever their age.
	fewMetrics = 64
)

// meterKey is one measured thing: the tree at a path, as it is walked or counted, or its
// file system.
type meterKey struct {
	path          string
	tree, counted bool
}

// lastMetrics keeps the last metrics of each path for an hour. The Meter is not
// told when a path is no longer measured. The zero value is ready.
type lastMetrics struct {
	mu      sync.Mutex
	of      map[meterKey]measured
	sweepAt int // how many there may be before the old ones go
}

type measured struct {
	began   time.Time
	metrics *volume.Metrics // never changed
}

// since returns a copy of the last metrics, if their measurement began after
// moment.
func (l *lastMetrics) since(key meterKey, moment time.Time) (*volume.Metrics, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, ok := l.of[key]
	if !ok || !last.began.After(moment) {
		return nil, false
	}
	return clone(last.metrics), true
}

// keep stores a copy of metrics.
func (l *lastMetrics) keep(key meterKey, began time.Time, metrics *volume.Metrics) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = make(map[meterKey]measured)
	}
	l.of[key] = measured{began: began, metrics: clone(metrics)}
	if len(l.of) <= max(l.sweepAt, fewMetrics) {
		return
	}
	for key, last := range l.of {
		if time.Since(last.began) > keepMetrics {
			delete(l.of, key)
		}
	}
	l.sweepAt = 2 * len(l.of)
}

func (l *lastMetrics) forget(key meterKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, key)
}

func clone(m *volume.Metrics) *volume.Metrics {
	copied := *m
	for _, q := range []**resource.Quantity{
		&copied.Used, &copied.Capacity, &copied.Available, &copied.InodesUsed, &copied.Inodes, &copied.InodesFree,
	} {
		if *q != nil {
			*q = new((*q).DeepCopy())
		}
	}
	return &copied
}
