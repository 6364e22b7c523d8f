package sentences_test

import (
	"bytes"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/sentences"
	"github.com/podvol/podvol/volume/volumemanager"
)

func TestWhatIsLeftUnmounted(t *testing.T) {
	row := func(pod, name string, state volumemanager.VolumeState, wanted bool) volumemanager.VolumeStatus {
		return volumemanager.VolumeStatus{Pod: types.NamespacedName{Namespace: "shop", Name: pod}, PodUID: types.UID(pod), Volume: name, State: state, Wanted: wanted}
	}
	var out bytes.Buffer
	sentences.TellUnmounted(&out, []volumemanager.VolumeStatus{
		row("web-0", "data", volumemanager.StateMounted, true), row("web-0", "idle", volumemanager.StateUnused, true), row("gone", "data", volumemanager.StateFailed, false),
	})
	if out.Len() > 0 {
		t.Errorf("it says %q", out.String())
	}
	sentences.TellUnmounted(&out, []volumemanager.VolumeStatus{
		row("web-1", "login", volumemanager.StateFailed, true), row("web-1", "data", volumemanager.StatePending, true), row("web-0", "data", volumemanager.StateMounted, true),
	})
	if want := "podvol: 2 volumes of 1 pod not mounted, for the next start to try again: shop/web-1 data, shop/web-1 login\n"; out.String() != want {
		t.Errorf("it says %q, want %q", out.String(), want)
	}
}
