package sentences_test

import (
	"bufio"
	"bytes"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/sentences"
	"github.com/podvol/podvol/util/testenv/terminal"
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

// It has no command to copy, so it is broken at a terminal as all sentences are.
func TestWhatIsLeftUnmountedIsBroken(t *testing.T) {
	typist, program := terminal.Open(t)
	terminal.Resize(t, program, 40)
	go sentences.TellUnmounted(program, []volumemanager.VolumeStatus{{Pod: types.NamespacedName{Namespace: "shop", Name: "web"}, PodUID: "u", Volume: "data", State: volumemanager.StateFailed, Wanted: true}})
	scanner := bufio.NewScanner(typist)
	var lines []string
	for len(lines) == 0 || !strings.HasSuffix(lines[len(lines)-1], "data") {
		if !scanner.Scan() {
			t.Fatalf("it ended after %q", lines)
		}
		lines = append(lines, scanner.Text())
	}
	if len(lines) < 2 || len(lines[0]) > 40 {
		t.Errorf("it says %q", lines)
	}
}
