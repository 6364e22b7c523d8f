package nodehttp

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumesource"
)

// servers answer for volumes by name, or never.
type servers struct {
	silent map[string]bool

	mu    sync.Mutex
	asked map[string]int
}

func (s *servers) measure(ctx context.Context, _ types.UID, name string) (*volume.Metrics, error) {
	s.mu.Lock()
	s.asked[name]++
	s.mu.Unlock()
	switch {
	case s.silent[name]:
		<-ctx.Done()
		return nil, ctx.Err()
	case name == "odd":
		return nil, volume.ErrMetricsUnsupported
	}
	n := func(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
	m := &volume.Metrics{Time: metav1.Now(), Capacity: n(1 << 30), Used: n(1 << 20), Available: n(1 << 10)}
	if name == "data" || name == "device" {
		m.Condition = &volume.Condition{Abnormal: name == "device", Message: "slow"}
	}
	if name != "uncounted" && name != "device" {
		m.Inodes, m.InodesUsed, m.InodesFree = n(100), n(40), n(60)
	}
	return m, nil
}

func claimRow(claim, pod string) volumemanager.VolumeStatus {
	return volumemanager.VolumeStatus{PodUID: types.UID(pod), Volume: claim, State: volumemanager.StateMounted,
		Claim: types.NamespacedName{Namespace: "shop", Name: claim}}
}

// A server that never answers delays a scrape no longer than is said, and its
// volume shows the last known value until it is gone.
func TestVolumeStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &servers{silent: map[string]bool{}, asked: map[string]int{}}
		c := newStatsCollector(nil)
		c.measure = s.measure
		failed := claimRow("failed", "a")
		failed.State = volumemanager.StateFailed
		device := claimRow("device", "a")
		device.Device = "/dev/sda"
		rows := []volumemanager.VolumeStatus{claimRow("data", "a"), claimRow("uncounted", "a"), claimRow("odd", "a"), failed, device,
			{PodUID: "a", Volume: "inline", State: volumemanager.StateMounted}}
		c.rows = func() []volumemanager.VolumeStatus { return rows }
		check := func(claim string, age float64) {
			t.Helper()
			families := gather(t, c)
			labels := map[string]string{"namespace": "shop", "persistentvolumeclaim": claim}
			if got := metricValue(t, families["kubelet_volume_stats_capacity_bytes"], labels); got != 1<<30 {
				t.Errorf("the capacity of %s is %v", claim, got)
			}
			if got := metricValue(t, families["podvol_volume_stats_age_seconds"], labels); got != age {
				t.Errorf("the numbers of %s are %v seconds old, want %v", claim, got, age)
			}
		}
		families := gather(t, c)
		for name, want := range map[string]int{
			"kubelet_volume_stats_capacity_bytes": 3, "kubelet_volume_stats_available_bytes": 3, "kubelet_volume_stats_used_bytes": 3,
			"kubelet_volume_stats_inodes": 1, "kubelet_volume_stats_inodes_free": 1, "kubelet_volume_stats_inodes_used": 1,
			"kubelet_volume_stats_health_status_abnormal": 2,
		} {
			if got := families[name]; len(got.GetMetric()) != want || got.GetType() != dto.MetricType_GAUGE {
				t.Errorf("%v, want %d of %s", got, want, name)
			}
		}
		for claim, want := range map[string]float64{"data": 0, "device": 1} {
			labels := map[string]string{"namespace": "shop", "persistentvolumeclaim": claim}
			if got := metricValue(t, families["kubelet_volume_stats_health_status_abnormal"], labels); got != want {
				t.Errorf("the health of %s is %v", claim, got)
			}
		}
		all := slices.Collect(maps.Values(families))
		if problems, err := promlint.NewWithMetricFamilies(all).Lint(); err != nil || len(problems) > 0 {
			t.Errorf("%v %v", problems, err)
		}

		rows = []volumemanager.VolumeStatus{claimRow("data", "a"), claimRow("data", "b")} // one claim of two pods
		s.asked = map[string]int{}
		check("data", 0)
		if s.asked["data"] != 1 || len(s.asked) != 1 {
			t.Errorf("measured: %v", s.asked)
		}
		s.silent["data"], s.silent["never"] = true, true
		rows = append(rows, claimRow("never", "a"))
		time.Sleep(time.Minute)
		start := time.Now()
		check("data", 62)
		if took := time.Since(start); took != c.patience {
			t.Errorf("a scrape took %v", took)
		}
		rows = nil
		gone := len(gather(t, c))
		rows = []volumemanager.VolumeStatus{claimRow("data", "a")}
		if back := len(gather(t, c)); gone != 0 || back != 0 {
			t.Errorf("%d, then %d values of a claim that was gone", gone, back)
		}
	})
}

// A volume that had to be given up when the node began counts as cleaned when
// it is torn down, each failure too.
func TestForceCleaned(t *testing.T) {
	row := claimRow("v", "a")
	lost := row
	lost.State = volumemanager.StateFailed
	m := NewMetrics(nil, []volumemanager.VolumeStatus{lost, claimRow("fine", "a")})
	for _, v := range []struct {
		volume, ended string
		err           error
	}{{"v", "set-up", errors.New("x")}, {"fine", "tear-down", nil}, {"v", "tear-down", errors.New("x")}, {"v", "tear-down", nil}, {"v", "tear-down", nil}} {
		row.Volume, row.Ended, row.Err = v.volume, v.ended, v.err
		m.Observe(row)
	}
	for collector, want := range map[prometheus.Collector]float64{m.found: 2, m.lost: 1, m.cleaned: 2, m.cleanedErrors: 1} {
		for name, family := range gather(t, collector) {
			if got := metricValue(t, family, nil); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	}
}

// Operations on volumes that were translated to CSI are told from others.
func TestMigratedVolumesAreMeasured(t *testing.T) {
	m := NewMetrics(nil, nil)
	row := claimRow("v", "a")
	row.Plugin, row.Ended = "kubernetes.io/csi", "set-up"
	m.Observe(row)
	row.Migrated = true
	m.Observe(row)
	m.Observe(row)
	for migrated, want := range map[string]float64{"false": 1, "true": 2} {
		labels := map[string]string{"volume_plugin": row.Plugin, "operation_name": "volume_mount", "status": "success", "migrated": migrated}
		if got := metricValue(t, gather(t, m.durations)["storage_operation_duration_seconds"], labels); got != want {
			t.Errorf("migrated=%s: %v operations, want %v", migrated, got, want)
		}
	}
	m.ObserveCSI("d", "m", "OK", false, time.Second)
	m.ObserveCSI("d", "m", "OK", true, time.Second)
	m.ObserveCSI("d", "m", "OK", true, time.Second)
	for migrated, want := range map[string]float64{"false": 1, "true": 2} {
		labels := map[string]string{"driver_name": "d", "method_name": "m", "grpc_status_code": "OK", "migrated": migrated}
		if got := metricValue(t, gather(t, m.drivers)["csi_operations_seconds"], labels); got != want {
			t.Errorf("migrated=%s: %v calls, want %v", migrated, got, want)
		}
	}
}

// gather is one scrape of these metrics alone.
func gather(t *testing.T, c prometheus.Collector) map[string]*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	gathered, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	families := make(map[string]*dto.MetricFamily)
	for _, f := range gathered {
		families[f.GetName()] = f
	}
	return families
}

func serverRow(name, server string, answers bool) volumemanager.VolumeStatus {
	row := claimRow(name, "web")
	row.Plugin = "kubernetes.io/nfs"
	row.Server = volumesource.Health{Source: server, Answers: answers, Since: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Failures: 3}
	return row
}

func TestServersAreCounted(t *testing.T) {
	rows := []volumemanager.VolumeStatus{serverRow("a", "nas1", true), serverRow("b", "nas2", false), serverRow("c", "nas2", false), claimRow("d", "web")}
	registry := prometheus.NewRegistry()
	registry.MustRegister(newVolumesCollector(func() []volumemanager.VolumeStatus { return rows }))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "podvol_volume_server_up" })
	if i < 0 || len(families[i].GetMetric()) != 2 {
		t.Fatalf("families: %v", families)
	}
	for server, want := range map[string]float64{"nas1": 1, "nas2": 0} {
		if got := metricValue(t, families[i], map[string]string{"plugin_name": "kubernetes.io/nfs", "server": server}); got != want {
			t.Errorf("%s: %v, want %v", server, got, want)
		}
	}
}

// metricValue is a gauge's or counter's value, or the count of a histogram.
func metricValue(t *testing.T, family *dto.MetricFamily, with map[string]string) float64 {
	t.Helper()
	for _, m := range family.GetMetric() {
		if len(m.GetLabel()) == len(with) && !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return with[l.GetName()] != l.GetValue() }) {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	t.Errorf("there is no metric %s with %v", family.GetName(), with)
	return -1
}
