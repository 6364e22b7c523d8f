package nodehttp

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// statsPatience is how long a scrape waits for all volumes together.
// Prometheus gives it ten seconds unless told otherwise.
const statsPatience = 2 * time.Second

// statsCollector measures the mounted claims at each scrape, under the kubelet's
// names (pkg/kubelet/metrics/collectors/volume_stats.go of Kubernetes v1.37; health_status_abnormal of v1.36). If
// a volume's server does not answer in time, it shows the last known value and
// its age.
type statsCollector struct {
	rows     func() []volumemanager.VolumeStatus
	measure  func(ctx context.Context, podUID types.UID, volumeName string) (*volume.Metrics, error)
	patience time.Duration
	stats    []volumeStat
	health   *prometheus.Desc
	age      *prometheus.Desc

	mu   sync.Mutex
	last map[types.NamespacedName]*volume.Metrics // by claim
}

// volumeStat is one number of a volume.
type volumeStat struct {
	desc *prometheus.Desc
	of   func(*volume.Metrics) *resource.Quantity
}

func newStatsCollector(node *volumemanager.Manager) *statsCollector {
	stat := func(name, help string, of func(*volume.Metrics) *resource.Quantity) volumeStat {
		return volumeStat{prometheus.NewDesc("kubelet_volume_stats_"+name, help, claimLabels(), nil), of}
	}
	return &statsCollector{
		rows: node.Explain, measure: node.Metrics, patience: statsPatience,
		last: make(map[types.NamespacedName]*volume.Metrics),
		stats: []volumeStat{
			stat("capacity_bytes", "The size of the volume.", func(m *volume.Metrics) *resource.Quantity { return m.Capacity }),
			stat("available_bytes", "What can still be written to the volume.", func(m *volume.Metrics) *resource.Quantity { return m.Available }),
			stat("used_bytes", "Bytes in use of the volume.", func(m *volume.Metrics) *resource.Quantity { return m.Used }),
			stat("inodes", "How many inodes the volume can have.", func(m *volume.Metrics) *resource.Quantity { return m.Inodes }),
			stat("inodes_free", "How many inodes the volume has left.", func(m *volume.Metrics) *resource.Quantity { return m.InodesFree }),
			stat("inodes_used", "How many inodes the volume has in use.", func(m *volume.Metrics) *resource.Quantity { return m.InodesUsed }),
		},
		health: prometheus.NewDesc("kubelet_volume_stats_health_status_abnormal",
			"1 where the volume's storage says that it is not in order, else 0.", claimLabels(), nil),
		age: prometheus.NewDesc("podvol_volume_stats_age_seconds",
			"How old the volume's other numbers are: more than moments, where its server does not answer.", claimLabels(), nil),
	}
}

func claimLabels() []string { return []string{"namespace", "persistentvolumeclaim"} }

// Describe implements prometheus.Collector.
func (c *statsCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, s := range c.stats {
		descs <- s.desc
	}
	descs <- c.health
	descs <- c.age
}

// Collect implements prometheus.Collector.
func (c *statsCollector) Collect(metrics chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, claim types.NamespacedName) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, claim.Namespace, claim.Name)
	}
	for claim, m := range c.measureAll() {
		for _, s := range c.stats {
			if value := s.of(m); value != nil {
				gauge(s.desc, value.AsApproximateFloat64(), claim)
			}
		}
		if m.Condition != nil {
			abnormal := 0.0
			if m.Condition.Abnormal {
				abnormal = 1
			}
			gauge(c.health, abnormal, claim)
		}
		gauge(c.age, max(0, time.Since(m.Time.Time).Seconds()), claim)
	}
}

// measureAll measures every mounted claim once, however many pods use it. It
// measures all at the same time, so that none waits for another one's server.
func (c *statsCollector) measureAll() map[types.NamespacedName]*volume.Metrics {
	ctx, cancel := context.WithTimeout(context.Background(), c.patience)
	defer cancel()
	found := make(map[types.NamespacedName]*volume.Metrics)
	var mu sync.Mutex
	var measuring sync.WaitGroup
	for claim, row := range mountedClaims(c.rows()) {
		measuring.Go(func() {
			m, err := c.measure(ctx, row.PodUID, row.Volume)
			if m = c.remember(claim, m, err); m != nil {
				mu.Lock()
				defer mu.Unlock()
				found[claim] = m
			}
		})
	}
	measuring.Wait()
	c.forgetOthers(found)
	return found
}

func mountedClaims(rows []volumemanager.VolumeStatus) map[types.NamespacedName]volumemanager.VolumeStatus {
	claims := make(map[types.NamespacedName]volumemanager.VolumeStatus)
	for _, row := range rows {
		if row.State == volumemanager.StateMounted && row.Claim.Name != "" {
			claims[row.Claim] = row
		}
	}
	return claims
}

// remember returns the measured value, or the last known value if the measurement
// failed; nil: there is none.
func (c *statsCollector) remember(claim types.NamespacedName, m *volume.Metrics, err error) *volume.Metrics {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case m != nil: // beside an error, of an earlier time or incomplete
		c.last[claim] = m
	case errors.Is(err, volume.ErrMetricsUnsupported):
		delete(c.last, claim)
	}
	return c.last[claim]
}

// forgetOthers drops the values of claims that are not mounted any more.
func (c *statsCollector) forgetOthers(mounted map[types.NamespacedName]*volume.Metrics) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for claim := range c.last {
		if mounted[claim] == nil {
			delete(c.last, claim)
		}
	}
}
