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
	if f := Events(all, "PersistentVolumeClaim", "shop", "data", now); f.Text != want {
		t.Errorf("%q, want %q", f.Text, want)
	}
	if f := Events(all, "PersistentVolume", "", "data", now); f.Text != "" {
		t.Errorf("%q", f.Text)
	}
}
