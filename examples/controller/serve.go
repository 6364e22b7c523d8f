package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/podvol/podvol/volume/attachdetach"
)

// serve serves health checks and metrics until it is closed.
func serve(address string, h http.Handler) (io.Closer, error) {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	if address == "" {
		return server, nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	go server.Serve(listener) // until it is closed
	return server, nil
}

func handler(c *controller) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		say(w, c.health.Check(c.options.leaseDuration), fmt.Sprintf("leading: %v", c.leads()))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { say(w, c.ready(), "ok") })
	mux.Handle("GET /metrics", promhttp.HandlerFor(metricsOf(c), promhttp.HandlerOpts{}))
	return mux
}

func say(w http.ResponseWriter, err error, otherwise string) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, otherwise)
}

// metricsOf are those of a replica. leader_election_master_status is what
// Kubernetes' components have.
func metricsOf(c *controller) *prometheus.Registry {
	all := prometheus.NewRegistry()
	gauge := func(name, help string, f func() float64) {
		all.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"name": c.options.leaseName}}, f))
	}
	gauge("leader_election_master_status", "1 while this replica leads, or needs no lease.", func() float64 {
		if c.leads() {
			return 1
		}
		return 0
	})
	gauge("podvol_controller_lease_renewed_seconds", "When the lease was renewed last, in Unix time; 0: not by this replica.", func() float64 {
		if s := c.health.State(); !s.Renewed.IsZero() {
			return float64(s.Renewed.UnixMilli()) / 1000
		}
		return 0
	})
	gauge("podvol_controller_terms", "How often this replica has begun to lead.", func() float64 { return float64(c.health.State().Terms) })
	if c.options.mode == modeAttach {
		all.MustRegister(attachCollector{c})
	}
	all.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return all
}

// attachCollector shows the attach/detach controller under the names of Kubernetes'.
type attachCollector struct{ controller *controller }

// Describe implements [prometheus.Collector]. The metrics of one without descriptions are
// not checked before they are collected.
func (attachCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (a attachCollector) Collect(metrics chan<- prometheus.Metric) {
	attaching := a.controller.attaching.Load()
	if attaching == nil || !a.controller.leads() {
		return
	}
	stats := attaching.Stats()
	volumes := prometheus.NewDesc("attachdetach_controller_total_volumes", "How many volumes are to be attached, and are.", []string{"plugin_name", "state"}, nil)
	for state, byPlugin := range map[string]map[string]int{"desired_state_of_world": stats.Wanted, "actual_state_of_world": stats.Attached} {
		for plugin, n := range byPlugin {
			metrics <- prometheus.MustNewConstMetric(volumes, prometheus.GaugeValue, float64(n), plugin, state)
		}
	}
	forced := prometheus.NewDesc("attach_detach_controller_attachdetach_controller_forced_detaches", "How many volumes were detached from nodes that are not waited for.", []string{"reason"}, nil)
	for _, reason := range []string{attachdetach.ForcedByTaint, attachdetach.ForcedByTime} {
		metrics <- prometheus.MustNewConstMetric(forced, prometheus.CounterValue, float64(stats.Forced[reason]), reason)
	}
}
