package devices

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// deaf is a plugin that finds two devices staged, and whose driver does not answer.
type deaf struct {
	volume.DeviceMountableVolumePlugin
	asked chan struct{}
}

func (p *deaf) GetPluginName() string { return "example.com/deaf" }

func (p *deaf) FindStaged(context.Context) ([]volume.StagedDevice, error) {
	named := func(name string) volume.StagedDevice {
		return volume.StagedDevice{Spec: volume.NewSpecFromVolume(&v1.Volume{Name: name}), Path: "/staged/" + name}
	}
	return []volume.StagedDevice{named("a"), named("b")}, nil
}

func (p *deaf) GetVolumeName(*volume.Spec) (string, error) {
	p.asked <- struct{}{}
	return "", errors.New("the driver does not answer")
}

// What is left staged and cannot be unmounted keeps nothing running after its time: the end
// of the test's bubble finds each goroutine that stays.
func TestUnstagingEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, table := &deaf{asked: make(chan struct{})}, newTable()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			table.FindLeft(ctx, LeftConfig{Adopt: true, Plugins: []volume.VolumePlugin{p}, Logger: slog.New(slog.DiscardHandler)}).Unstage(ctx)
		}()
		table.PodsComplete()
		for range 4 { // each device once and again
			<-p.asked
		}
		cancel()
		for open := true; open; {
			select {
			case <-p.asked:
			case <-ended:
				open = false
			}
		}
	})
}
