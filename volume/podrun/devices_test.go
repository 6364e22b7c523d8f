package podrun

import (
	"strings"
	"testing"

	"github.com/podvol/podvol/volume/containermounts"
)

func TestRunRefusesReadOnlyDevices(t *testing.T) {
	d := containermounts.Device{Volume: "disk", Source: "/dev/x", Destination: "/dev/xvdro", Permissions: "r"}
	if m, err := deviceMount(d); err == nil || !strings.Contains(err.Error(), `"disk" (/dev/xvdro)`) {
		t.Errorf("%+v, %v", m, err)
	}
	d.Permissions = "rwm"
	if m, err := deviceMount(d); err != nil || m.Source != "/dev/x" || m.Destination != "/dev/xvdro" || !m.File {
		t.Errorf("%+v, %v", m, err)
	}
}
