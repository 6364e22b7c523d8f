package ephemeralstorage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/meter"
)

// Reason is that of the status of a pod which was evicted.
const Reason = "Evicted"

const (
	// usualInterval is the kubelet's.
	usualInterval = 10 * time.Second
	// maxAtOnce bounds the pods that are measured at once. Each may take four threads.
	maxAtOnce = 4
)

// Config is what a [Monitor] needs.
type Config struct {
	// Volumes is required, the others are optional.
	Volumes Volumes
	// Containers tells of what is written beside volumes; nil: that does not count.
	Containers Containers
	// FilesOnDisk says that secret, downwardAPI and projected volumes are on disk, not in
	// memory as they usually are.
	FilesOnDisk bool
	// Timeout bounds the measuring of one pod by [Monitor.Run]; 0: it is longer than two
	// walks ([meter.MaxTreeTime]), since one may be under way already. Otherwise a pod
	// with so many files that a walk takes its whole time would never be measured.
	Timeout time.Duration
}

// Monitor measures pods. Its methods are safe for concurrent use.
type Monitor struct{ config Config }

// New returns a Monitor. It does no I/O.
func New(c Config) *Monitor {
	if c.Timeout <= 0 {
		c.Timeout = 2*meter.MaxTreeTime + 30*time.Second
	}
	return &Monitor{c}
}

// Usage measures what a pod takes of the node's disk. It returns promptly when ctx
// ends, with what is known by then.
func (m *Monitor) Usage(ctx context.Context, pod *v1.Pod) Usage {
	usage := Usage{Volumes: map[string]int64{}}
	var unknown []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !isLocal(v, m.config.FilesOnDisk) {
			continue
		}
		bytes, err := measured(m.config.Volumes.Metrics(ctx, pod.UID, v.Name))
		usage.Volumes[v.Name] = bytes
		unknown = append(unknown, err)
	}
	if m.config.Containers != nil {
		written, err := m.config.Containers.DiskUsage(ctx, pod)
		usage.Containers = written
		if err != nil {
			unknown = append(unknown, fmt.Errorf("what the containers of pod %s/%s have written: %w", pod.Namespace, pod.Name, err))
		}
	}
	usage.Unknown = errors.Join(unknown...)
	return usage
}

// Check says whether a pod exceeds a limit; nil: it does not. It measures only pods that
// have one, and returns promptly when ctx ends.
func (m *Monitor) Check(ctx context.Context, pod *v1.Pod) *Eviction {
	if !isLimited(pod) {
		return nil
	}
	return Exceeded(pod, m.Usage(ctx, pod))
}

// Run checks the pods that pods returns at once and then at an interval (0: every 10
// seconds, as the kubelet does), until ctx ends. The interval is from the end of one round to the
// beginning of the next. A pod is left out for as long as its last check took, so that many
// files do not keep the node busy with counting them.
//
// Evict is called for each pod that exceeds a limit, from several goroutines at once, with
// the pod as pods returned it. The next round waits for it. It is called again in the next
// round for a pod that still exceeds one, unless pods does not return that any more: pods
// that end, or have ended, are to be left out. Run only reads pods.
func (m *Monitor) Run(ctx context.Context, interval time.Duration, pods func() []*v1.Pod, evict func(*v1.Pod, *Eviction)) {
	if interval <= 0 {
		interval = usualInterval
	}
	var resting map[types.UID]time.Time
	for timer := time.NewTimer(0); ; timer.Reset(interval) {
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		resting = m.round(ctx, pods(), resting, evict)
	}
}

// round checks all pods but those that rest until later, and returns which rest then.
func (m *Monitor) round(ctx context.Context, pods []*v1.Pod, resting map[types.UID]time.Time, evict func(*v1.Pod, *Eviction)) map[types.UID]time.Time {
	var mu sync.Mutex
	next := map[types.UID]time.Time{}
	rest := func(pod *v1.Pod, until time.Time) {
		mu.Lock()
		defer mu.Unlock()
		next[pod.UID] = until
	}
	var all sync.WaitGroup
	free := make(chan struct{}, maxAtOnce)
	for _, pod := range pods {
		if until := resting[pod.UID]; time.Now().Before(until) {
			rest(pod, until)
			continue
		}
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
			all.Wait()
			return nil
		}
		all.Go(func() {
			defer func() { <-free }()
			limited, cancel := context.WithTimeout(ctx, m.config.Timeout)
			defer cancel()
			began := time.Now()
			exceeded := m.Check(limited, pod)
			rest(pod, time.Now().Add(time.Since(began)))
			if exceeded != nil {
				evict(pod, exceeded)
			}
		})
	}
	all.Wait()
	return next
}
