package standalone

import (
	"errors"
	"testing"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Of a pod with one busy volume only that one is still pending.
func TestStillPending(t *testing.T) {
	err := &volumemanager.PodError{Errs: []error{&volume.Error{Volume: "ram", Err: errors.New("busy")}}}
	for name, want := range map[string]bool{"ram": true, "disk": false} {
		if v, pending := stillPending(volumemanager.VolumeStatus{Volume: name}, err); pending != want || pending && v.Err != err.Errs[0] {
			t.Errorf("%s: %v, %v", name, pending, v.Err)
		}
	}
	if _, pending := stillPending(volumemanager.VolumeStatus{}, errors.New("stopped")); !pending {
		t.Error("an error of no volume says nothing is pending")
	}
	if _, pending := stillPending(volumemanager.VolumeStatus{}, nil); pending {
		t.Error("a success leaves something pending")
	}
}
