package volumemanager_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/propagation"
	"github.com/podvol/podvol/volume/volumemanager"
)

// hiding is the mounter of an agent in a container without mount propagation.
type hiding struct{ *fakemount.Mounter }

func (hiding) CheckPropagation(dir string) (*propagation.Warning, error) {
	return &propagation.Warning{Dir: dir, Place: propagation.Container}, nil
}

// An agent whose mounts the host would not see works, and says so at its start: in the log, and
// to the program.
func TestHiddenMountsAreToldOf(t *testing.T) {
	for _, hides := range []bool{false, true} {
		var log bytes.Buffer
		w := newWorld(t)
		if hides {
			w.mounter = hiding{w.fake}
		}
		config := w.config()
		config.Logger = slog.New(slog.NewTextHandler(&log, nil))
		manager, err := volumemanager.New(config)
		must(t, err)
		if warning := manager.HiddenMounts(); warning != nil {
			t.Errorf("before Run: %v", warning)
		}
		stop := w.run(manager)
		warning := manager.HiddenMounts()
		stop()
		if told := strings.Contains(log.String(), "mountPropagation: Bidirectional"); hides != (warning != nil && warning.Dir == w.root) || hides != told {
			t.Errorf("hides %v: %v, log %s", hides, warning, log.String())
		}
	}
}
