package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

func serverRow(name, server string, answers bool) volumemanager.VolumeStatus {
	row := claimRow(name, "web")
	row.Plugin = "kubernetes.io/nfs"
	row.Server = volume.SourceHealth{Source: server, Answers: answers, Since: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Failures: 3}
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

// A volume that is mounted says that its server is in trouble; of others, the
// error does.
func TestRowsTellOfTheServer(t *testing.T) {
	var out, errOut bytes.Buffer
	rows, err := newPrinter("table", &out, &errOut)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []volumemanager.VolumeStatus{serverRow("a", "nas1", true), serverRow("b", "nas2", false)} {
		if err := rows.add(rowOf(v)); err != nil {
			t.Fatal(err)
		}
	}
	if got := errOut.String(); !strings.Contains(got, "web b: its server nas2 has not answered since 2030-01-02T03:04:05Z") || strings.Contains(got, "nas1") {
		t.Errorf("%q", got)
	}
	out.Reset()
	if rows, err = newPrinter("json", &out, &errOut); err != nil {
		t.Fatal(err)
	}
	for _, v := range []volumemanager.VolumeStatus{serverRow("a", "nas1", true), serverRow("b", "nas2", false)} {
		if err := rows.add(rowOf(v)); err != nil {
			t.Fatal(err)
		}
	}
	if got := out.String(); strings.Count(got, `"server"`) != 1 || !strings.Contains(got, "nas2 has not answered") {
		t.Errorf("%s", got)
	}
}
