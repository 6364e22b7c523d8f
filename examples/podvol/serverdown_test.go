package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumesource"
)

func serverRow(name, server string, answers bool) volumemanager.VolumeStatus {
	row := volumemanager.VolumeStatus{PodUID: "web", Volume: name, State: volumemanager.StateMounted}
	row.Plugin = "kubernetes.io/nfs"
	row.Server = volumesource.Health{Source: server, Answers: answers, Since: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), Failures: 3}
	return row
}

// A volume that is mounted says that its server is in trouble; of others, the
// error does.
func TestRowsTellOfTheServer(t *testing.T) {
	var out, errOut bytes.Buffer
	printer := rows.NewPrinter("table", &out, &errOut)
	for _, v := range []volumemanager.VolumeStatus{serverRow("a", "nas1", true), serverRow("b", "nas2", false)} {
		if err := printer.Add(rows.Of(v)); err != nil {
			t.Fatal(err)
		}
	}
	if got := errOut.String(); !strings.Contains(got, "web b: its server nas2 has not answered since 2030-01-02T03:04:05Z") || strings.Contains(got, "nas1") {
		t.Errorf("%q", got)
	}
	out.Reset()
	printer = rows.NewPrinter("json", &out, &errOut)
	for _, v := range []volumemanager.VolumeStatus{serverRow("a", "nas1", true), serverRow("b", "nas2", false)} {
		if err := printer.Add(rows.Of(v)); err != nil {
			t.Fatal(err)
		}
	}
	if got := out.String(); strings.Count(got, `"server"`) != 1 || !strings.Contains(got, "nas2 has not answered") {
		t.Errorf("%s", got)
	}
}
