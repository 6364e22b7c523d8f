package rows

import (
	"io"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/volumemanager"
)

// What goes without having been mounted is not said to be unmounted.
func TestWhatWasNeverMountedIsGone(t *testing.T) {
	var out strings.Builder
	s := NewStream("table", &out, io.Discard)
	say := func(volume string, state volumemanager.VolumeState, ended string) {
		t.Helper()
		err := s.Print(volumemanager.VolumeStatus{Pod: types.NamespacedName{Namespace: "shop", Name: "a"}, PodUID: "u", Volume: volume, State: state, Ended: ended})
		if err != nil {
			t.Fatal(err)
		}
	}
	say("never", volumemanager.StateFailed, "set-up")
	say("never", volumemanager.StateUnmounted, "")
	say("was", volumemanager.StateMounted, "set-up")
	say("was", volumemanager.StateUnmounted, "")
	say("before", volumemanager.StateUnmounted, "tear-down")
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line)[1:], " "))
	}
	want := "VOLUME STATE SOURCE|never failed -|never gone it was never mounted|was mounted -|was unmounted -|before unmounted -"
	if strings.Join(got, "|") != want {
		t.Errorf("%q", got)
	}
}

// The states of a rehearsal have room from the first row on.
func TestRowsOfARehearsalAreAligned(t *testing.T) {
	var out strings.Builder
	s := NewStream("table", &out, io.Discard)
	s.Expect(Row{State: string(volumemanager.StateMounted), Fake: true})
	for _, state := range []volumemanager.VolumeState{volumemanager.StatePending, volumemanager.StateMounted} {
		if err := s.PrintRow(Key{}, Row{Pod: "shop/a", Volume: "v", State: string(state), Source: "disk", Fake: true}); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(out.String(), "\n")
	if at := strings.Index(lines[0], "SOURCE"); at != strings.Index(lines[1], "disk") || at != strings.Index(lines[2], "disk") {
		t.Errorf("not aligned:\n%s", out.String())
	}
}
