package ownplugins_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/examples/podvol/internal/ownplugins"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/flexvolume"
)

// The flags give the directory of FlexVolume drivers. A rehearsal runs no driver.
func TestARehearsalRunsNoDrivers(t *testing.T) {
	dir := t.TempDir()
	ran := filepath.Join(t.TempDir(), "ran")
	if err := errors.Join(os.MkdirAll(dir+"/example.com~d", 0o755), os.WriteFile(dir+"/example.com~d/d", []byte("#!/bin/sh\n: >"+ran+"\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	var o ownplugins.Options
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	o.Add(flags, nil)
	given := []string{"--flexvolume-dir", dir, "--flexvolume-secrets"}
	if err := flags.Parse(given); err != nil {
		t.Fatal(err)
	}
	if got := o.DriverArgs(); !slices.Equal(got, given) {
		t.Errorf("the flags again: %q", got)
	}
	for _, fake := range []bool{true, false} {
		all, err := o.Plugins(t.Context(), fake, slog.New(slog.DiscardHandler))
		i := slices.IndexFunc(all, func(p volume.VolumePlugin) bool { return p.GetPluginName() == flexvolume.PluginName })
		if err != nil || i < 0 {
			t.Fatalf("%d plugins, %v", len(all), err)
		}
		if err := all[i].Init(fakehost.New(t)); err != nil {
			t.Fatal(err)
		}
		spec := volume.NewSpecFromVolume(&v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: "example.com/d"}}})
		m, err := all[i].NewMounter(spec, fakehost.Pod("a"))
		if err != nil {
			t.Fatal(err)
		}
		err = m.SetUp(t.Context(), volume.MounterArgs{})
		_, missing := os.Stat(ran)
		if fake && (!errors.Is(err, flexvolume.ErrNotInstalled) || !strings.Contains(err.Error(), "--fake runs no drivers") || missing == nil) {
			t.Errorf("a rehearsal: %v; the driver ran: %v", err, missing == nil)
		}
		if !fake && (!errors.Is(err, flexvolume.ErrDriver) || missing != nil) {
			t.Errorf("the driver did not run: %v, %v", err, missing)
		}
	}
}
