package volumemanager_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/hostpath"
	"github.com/podvol/podvol/volume/volumemanager"
)

// telling is a plugin whose sources appear when the test says so.
type telling struct {
	volume.VolumePlugin
	wake chan func(source string)
}

func (p telling) Run(ctx context.Context, wake func(source string)) error {
	p.wake <- wake
	<-ctx.Done()
	return nil
}

// A plugin that sees a source appear has its volumes tried at once, whatever the pause.
func TestASourceThatAppearsEndsThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := telling{hostpath.New(hostpath.Config{}), make(chan func(string), 1)}
		w.plugins = func() []volume.VolumePlugin { return []volume.VolumePlugin{p} }
		manager, stop := w.start()
		defer stop()
		path := filepath.Join(t.TempDir(), "later")
		v := hostPathVolume("v", path)
		v.HostPath.Type = new(v1.HostPathDirectory)
		if err := manager.PutPod(newPod("web", v)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		failures := statusOf(t, manager, "web").Failures
		wake := <-p.wake
		wake("/elsewhere")
		synctest.Wait()
		if row := statusOf(t, manager, "web"); row.State != volumemanager.StateFailed || row.Failures != failures {
			t.Errorf("after another source has appeared: %+v", row)
		}
		wake(path)
		synctest.Wait()
		if row := statusOf(t, manager, "web"); row.State != volumemanager.StateMounted {
			t.Errorf("after it has appeared: %+v", row)
		}
	})
}
