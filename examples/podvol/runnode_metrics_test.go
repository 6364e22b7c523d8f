package main

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func TestRunNodeServesMetricsAndExplains(t *testing.T) {
	leaks(t)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	n := runInProcess(t, t.TempDir(), filepath.Join(t.TempDir(), "root"), "--fake", "--metrics-addr", "0")
	_, url, _ := strings.Cut(n.hears("metrics are at "), "metrics are at ")
	url, _, _ = strings.Cut(url, "/metrics")
	if !strings.HasPrefix(url, "http://127.0.0.1:") {
		t.Errorf("it listens at %s", url)
	}
	n.put("a.yaml", podNamed("a", "{name: one, emptyDir: {}}, {name: bad, configMap: {name: missing}}"))
	n.row("bad", "failed")
	n.put("b.yaml", podNamed("b", "{name: two, emptyDir: {}}"))
	n.row("two", "mounted")
	n.remove("b.yaml")
	n.row("two", "unmounted")

	var rows []struct {
		Namespace, Pod, PodUID, Volume, Plugin, State, Cause, Error string
		Wanted                                                      bool
		Since, NextRetry                                            time.Time
		DurationSeconds                                             float64
		Failures                                                    int
	}
	for began := time.Now(); rows == nil || rows[0].NextRetry.IsZero() && time.Since(began) < patience; { // it may be tried again just now
		rows = nil
		if err := json.Unmarshal(get(t, url+"/explain"), &rows); err != nil || len(rows) != 2 {
			t.Fatalf("%v, %+v", err, rows)
		}
	}
	if r := rows[0]; r.Volume != "bad" || r.Cause != "NotFound" || r.Failures < 1 || r.NextRetry.IsZero() || !strings.Contains(r.Error, "shop/missing") {
		t.Errorf("row %+v", r)
	}
	if r := rows[1]; r.Namespace != "shop" || r.Pod != "a" || r.Volume != "one" || r.State != "mounted" || !r.Wanted || r.Since.IsZero() || r.DurationSeconds <= 0 || r.Error != "" {
		t.Errorf("row %+v", r)
	}
	if page := string(get(t, url+"/")); !strings.Contains(page, "2 volumes of 1 pod") || !strings.Contains(page, "shop/missing") {
		t.Errorf("the page is\n%s", page)
	}
	if got := string(get(t, url+"/healthz")); got != "ok\n" {
		t.Errorf("/healthz: %q", got)
	}

	n.put("c.yaml", podNamed("c", "{name: disk, persistentVolumeClaim: {claimName: d}}")+`---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: d, namespace: shop}
spec: {storageClassName: "", accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec: {storageClassName: "", accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, nfs: {server: 10.244.1.4, path: /}}
`)
	n.row("disk", "mounted")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(get(t, url+"/metrics"))))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"capacity_bytes", "available_bytes", "used_bytes"} {
		if got := metricValue(t, families["kubelet_volume_stats_"+name], map[string]string{"namespace": "shop", "persistentvolumeclaim": "d"}); got < 0 {
			t.Errorf("%s is %v", name, got)
		}
	}
	for _, tc := range []struct {
		name string
		with map[string]string
		want float64
	}{
		{"volume_manager_total_volumes", map[string]string{"plugin_name": "kubernetes.io/empty-dir", "state": "desired_state_of_world"}, 1},
		{"volume_manager_total_volumes", map[string]string{"plugin_name": "kubernetes.io/empty-dir", "state": "actual_state_of_world"}, 1},
		{"volume_manager_total_volumes", map[string]string{"plugin_name": "kubernetes.io/configmap", "state": "desired_state_of_world"}, 1},
		{"storage_operation_duration_seconds", map[string]string{"volume_plugin": "kubernetes.io/empty-dir", "operation_name": "volume_mount", "status": "success", "migrated": "false"}, 2},
		{"storage_operation_duration_seconds", map[string]string{"volume_plugin": "kubernetes.io/empty-dir", "operation_name": "volume_unmount", "status": "success", "migrated": "false"}, 1},
		{"volume_operation_total_seconds", map[string]string{"plugin_name": "kubernetes.io/empty-dir", "operation_name": "volume_mount"}, 2},
		{"podvol_volume_server_up", map[string]string{"plugin_name": "kubernetes.io/nfs", "server": "10.244.1.4"}, 1},
		{"reconstruct_volume_operations_total", nil, 0},
		{"reconstruct_volume_operations_errors_total", nil, 0},
		{"force_cleaned_failed_volume_operations_total", nil, 0},
		{"force_cleaned_failed_volume_operation_errors_total", nil, 0},
	} {
		if got := metricValue(t, families[tc.name], tc.with); got != tc.want {
			t.Errorf("%s%v is %v, want %v", tc.name, tc.with, got, tc.want)
		}
	}
	if got := metricValue(t, families["storage_operation_duration_seconds"], map[string]string{
		"volume_plugin": "kubernetes.io/configmap", "operation_name": "volume_mount", "status": "fail-unknown", "migrated": "false"}); got < 1 {
		t.Errorf("%v failures are counted", got)
	}
	n.stop()
}

func get(t *testing.T, url string) []byte {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, response.Status, err)
	}
	return body
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
