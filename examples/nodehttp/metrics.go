package nodehttp

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/volumemanager"
)

// Metrics are a node's metrics, under the kubelet's names and with its
// labels and buckets (pkg/volume/util/metrics.go and
// pkg/kubelet/volumemanager/metrics of Kubernetes v1.37), so that dashboards
// made for kubelets work.
type Metrics struct {
	registry  *prometheus.Registry
	durations *prometheus.HistogramVec
	drivers   *prometheus.HistogramVec
	endToEnd  *prometheus.HistogramVec
	// The state when the node began.
	found, lost, cleaned, cleanedErrors prometheus.Counter
	unusable                            map[volumeKey]bool // and has not been torn down yet
}

// NewMetrics returns the metrics of a node. rows are the volumes that existed
// when the node began.
func NewMetrics(node *volumemanager.Manager, rows []volumemanager.VolumeStatus) *Metrics {
	buckets := []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "storage_operation_duration_seconds", Help: "How long an operation on a volume took.", Buckets: buckets,
		}, []string{"volume_plugin", "operation_name", "status", "migrated"}),
		endToEnd: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "volume_operation_total_seconds", Help: "How long an operation on a volume took that succeeded.", Buckets: buckets,
		}, []string{"plugin_name", "operation_name"}),
		drivers: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "csi_operations_seconds", Help: "How long a call of a CSI driver took, by the code of its answer.", Buckets: buckets,
		}, []string{"driver_name", "method_name", "grpc_status_code", "migrated"}),
		found:         counter("reconstruct_volume_operations_total", "Volumes that were there at the start, readable records or not."),
		lost:          counter("reconstruct_volume_operations_errors_total", "Volumes that were there at the start and cannot be used as they are."),
		cleaned:       counter("force_cleaned_failed_volume_operations_total", "Attempts to tear down volumes that could not be used at the start."),
		cleanedErrors: counter("force_cleaned_failed_volume_operation_errors_total", "Attempts of these that failed."),
		unusable:      make(map[volumeKey]bool),
	}
	for _, v := range rows {
		m.found.Inc()
		if v.State == volumemanager.StateFailed {
			m.lost.Inc()
			m.unusable[keyOf(v)] = true
		}
	}
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		m.durations, m.endToEnd, m.drivers, newVolumesCollector(node.Explain), newStatsCollector(node), m.found, m.lost, m.cleaned, m.cleanedErrors,
	)
	return m
}

// CountRefused adds the number of manifests that are refused, which is asked at each scrape.
// It must be called at most once.
func (m *Metrics) CountRefused(refused func() int) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "podvol_manifests_refused", Help: "Files of the directory of manifests that are refused as they are.",
	}, func() float64 { return float64(refused()) }))
}

// Handler answers requests for the metrics in the format of Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Observe receives the outcome of an operation. It ignores other statuses. One
// goroutine at a time may call it, such as a subscriber of the manager.
func (m *Metrics) Observe(v volumemanager.VolumeStatus) {
	if v.Ended == "" {
		return
	}
	operation, status, seconds := operationName(v.Ended), "success", v.Duration.Seconds()
	if v.Err != nil {
		status = "fail-unknown"
	} else {
		m.endToEnd.WithLabelValues(v.Plugin, operation).Observe(seconds)
	}
	m.durations.WithLabelValues(v.Plugin, operation, status, strconv.FormatBool(v.Migrated)).Observe(seconds)
	m.observeUnusable(v)
}

// ObserveCSI receives a call of a CSI driver that has ended, with the call's full name and
// the code of its answer; migrated says whether its volume was translated from an in-tree
// source. It may be called concurrently.
func (m *Metrics) ObserveCSI(driver, method, code string, migrated bool, took time.Duration) {
	m.drivers.WithLabelValues(driver, method, code, strconv.FormatBool(migrated)).Observe(took.Seconds())
}

func (m *Metrics) observeUnusable(v volumemanager.VolumeStatus) {
	key := keyOf(v)
	switch {
	case !m.unusable[key]:
	case v.Ended == "tear-down":
		m.cleaned.Inc()
		if v.Err != nil {
			m.cleanedErrors.Inc()
			return
		}
		delete(m.unusable, key)
	case v.Err == nil: // it was set up again
		delete(m.unusable, key)
	}
}

// operationName is the kubelet's name of an operation.
func operationName(operation string) string {
	switch operation {
	case "set-up":
		return "volume_mount"
	case "tear-down":
		return "volume_unmount"
	}
	return operation
}

// volumesCollector counts volumes at each scrape.
type volumesCollector struct {
	explain                    func() []volumemanager.VolumeStatus
	volumes, inFlight, servers *prometheus.Desc
}

func newVolumesCollector(explain func() []volumemanager.VolumeStatus) volumesCollector {
	return volumesCollector{
		explain: explain,
		volumes: prometheus.NewDesc("volume_manager_total_volumes",
			"Volumes that are wanted (desired_state_of_world), and that are mounted or left to be unmounted (actual_state_of_world).",
			[]string{"plugin_name", "state"}, nil),
		inFlight: prometheus.NewDesc("podvol_volume_operations_in_flight",
			"Operations that are under way; each that hangs keeps a thread.", []string{"plugin_name", "operation_name"}, nil),
		servers: prometheus.NewDesc("podvol_volume_server_up",
			"1 for a server of volumes, 0 while mounts from it are refused since those before had no answer.", []string{"plugin_name", "server"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c volumesCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.volumes
	descs <- c.inFlight
	descs <- c.servers
}

// Collect implements prometheus.Collector.
func (c volumesCollector) Collect(metrics chan<- prometheus.Metric) {
	type labels struct{ plugin, what string }
	volumes, operations, servers := make(map[labels]int), make(map[labels]int), make(map[labels]bool)
	for _, v := range c.explain() {
		if v.Wanted && v.State != volumemanager.StateUnused {
			volumes[labels{v.Plugin, "desired_state_of_world"}]++
		}
		if v.State == volumemanager.StateMounted || !v.Wanted {
			volumes[labels{v.Plugin, "actual_state_of_world"}]++
		}
		if v.Operation != "" {
			operations[labels{v.Plugin, operationName(v.Operation)}]++
		}
		if v.Server.Source != "" {
			servers[labels{v.Plugin, v.Server.Source}] = v.Server.Answers
		}
	}
	for l, n := range volumes {
		metrics <- prometheus.MustNewConstMetric(c.volumes, prometheus.GaugeValue, float64(n), l.plugin, l.what)
	}
	for l, n := range operations {
		metrics <- prometheus.MustNewConstMetric(c.inFlight, prometheus.GaugeValue, float64(n), l.plugin, l.what)
	}
	for l, answers := range servers {
		up := 0.0
		if answers {
			up = 1
		}
		metrics <- prometheus.MustNewConstMetric(c.servers, prometheus.GaugeValue, up, l.plugin, l.what)
	}
}

// volumeKey names a volume of a pod.
type volumeKey struct {
	pod    types.UID
	volume string
}

func keyOf(v volumemanager.VolumeStatus) volumeKey { return volumeKey{v.PodUID, v.Volume} }
