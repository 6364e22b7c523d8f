package fields

import (
	"testing"
	"time"

	"github.com/podvol/podvol/examples/nodehttp/nodeevents"
)

func TestEvents(t *testing.T) {
	now := time.Unix(1000, 0)
	all := []nodeevents.Event{
		{Kind: "Pod", Namespace: "shop", Name: "data", Message: "another kind"},
		{Kind: "PersistentVolumeClaim", Namespace: "lab", Name: "data", Message: "another claim"},
		{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "data", Type: "Warning", Reason: "ProvisioningFailed", Message: "no class\nmake one", Count: 3, Last: now.Add(-12 * time.Second)},
		{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "data", Type: "Normal", Reason: "Bound", Message: "it is bound", Count: 1, Last: now},
	}
	want := "12s ago, 3 times, Warning ProvisioningFailed: no class make one\n0s ago, Normal Bound: it is bound"
	claim := Subject{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "data"}
	if f := Events(all, claim, now); f.Text != want {
		t.Errorf("%q, want %q", f.Text, want)
	}
	if f := Events(all, Subject{Kind: "PersistentVolume", Name: "data"}, now); f.Text != "" {
		t.Errorf("%q", f.Text)
	}
}

// Another object has had the name before, or has it on another node.
func TestEventsOfAnotherOfTheName(t *testing.T) {
	now := time.Unix(1000, 0)
	all := []nodeevents.Event{
		{Kind: "Pod", Name: "web", UID: "old", Type: "Warning", Reason: "FailedMount", Last: now},
		{Kind: "Pod", Name: "web", Type: "Normal", Reason: "Deleted", Message: "it is deleted", Last: now.Add(-time.Minute)},
		{Kind: "Pod", Name: "web", UID: "new", Type: "Normal", Reason: "Mounted", Message: "its own", Last: now},
	}
	if f := Events(all, Subject{Kind: "Pod", Name: "web", UID: "new", Since: now.Add(-time.Second)}, now); f.Text != "0s ago, Normal Mounted: its own" {
		t.Errorf("%q", f.Text)
	}
}
