package nodeserver

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumesource"
)

// A row loses nothing of what a node serves, and has nothing that no node serves.
func TestARowHasAllThatIsServed(t *testing.T) {
	now := time.Date(2026, 11, 28, 1, 2, 3, 0, time.UTC)
	status := volumemanager.VolumeStatus{
		Pod: types.NamespacedName{Namespace: "shop", Name: "web"}, PodUID: "uid", NodeName: "node", Volume: "data",
		Plugin: "plugin", Source: "source", PersistentVolume: "pv", Claim: types.NamespacedName{Namespace: "shop", Name: "data"},
		State: volumemanager.StatePending, Path: "/path", Device: "/dev/sdx", Since: now, Duration: time.Second, Wanted: true, Kept: true,
		Operation: "set-up", Began: now, Progress: volume.Progress{Doing: "copying", Done: 1, Total: 2}, Failures: 3, NextRetry: now,
		Err:        &volume.Failure{Cause: errors.New("broken"), What: "it is broken", Next: "mend it"},
		Attachment: &volumemanager.AttachmentError{Volume: "plugin/data", Node: "node"},
		Server:     volumesource.Health{Source: "server", Since: now, Failures: 1, RetryAt: now, Err: errors.New("silent")},
		Condition:  &volume.Condition{Abnormal: true, Message: "degraded"},
	}
	rows, err := VolumesOf([]volumemanager.VolumeStatus{status})
	if err != nil {
		t.Fatal(err)
	}
	row := reflect.ValueOf(rows[0])
	for i := range row.NumField() {
		if row.Field(i).IsZero() {
			t.Errorf("no node serves %s", row.Type().Field(i).Name)
		}
	}
	if diff := cmp.Diff(keysOf(t, status), keysOf(t, rows[0])); diff != "" {
		t.Errorf("served (-), in the row (+):\n%s", diff)
	}
}

func keysOf(t *testing.T, value any) (keys map[string]any) {
	t.Helper()
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, &keys)
	}
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
