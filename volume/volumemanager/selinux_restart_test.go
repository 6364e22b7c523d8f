package volumemanager_test

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/journal"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager"
)

// unfinishedRecord writes the record that a process leaves which dies while it
// sets a pod up that asks for another label than "first" has.
func (w *world) unfinishedRecord(pod *v1.Pod, level string) {
	w.t.Helper()
	j, held, _, err := journal.Open(w.recordsPath())
	if err != nil || len(held) != 1 {
		w.t.Fatal(err, held)
	}
	record, err := mountrecord.Decode(held[0].Value, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	key := strings.Replace(held[0].Key, string(record.PodUID), string(pod.UID), 1)
	record.Path = strings.Replace(record.Path, string(record.PodUID), string(pod.UID), 1)
	record.PodUID, record.Pod = pod.UID, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	record.SELinuxLabel = "system_u:object_r:container_file_t:" + level
	line, err := mountrecord.Encode(record)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := errors.Join(j.Put(key, line), j.Close()); err != nil {
		w.t.Fatal(err)
	}
}

// The label of a device that was mounted before a restart is the one that it is
// mounted with, whatever an unfinished set-up has asked for.
func TestUnfinishedSetUpSaysNothingAboutTheLabel(t *testing.T) {
	w := newWorld(t)
	w.seLinuxMount = true
	d := w.withLabels(false, v1.ReadWriteMany)
	manager, stop := w.start()
	first, other := labelledPod("first", "s0:c1,c2"), labelledPod("other", "s0:c8,c9")
	mustSetUp(t, manager, first)
	stop()
	w.unfinishedRecord(other, "s0:c8,c9")
	manager, stop = w.start()
	_, err := manager.SetUpPod(t.Context(), other)
	if e, ok := errors.AsType[*volume.Failure](err); !ok || e.Cause != volumemanager.ErrSELinuxConflict || !strings.Contains(e.What, `:s0:c1,c2" and "`) {
		t.Errorf("err = %v", err)
	}
	mustSetUp(t, manager, first)
	stop()

	// The one whose label it is goes; then it is mounted with the other's.
	manager, _ = w.start()
	mustTearDown(t, manager, first)
	mustSetUp(t, manager, other)
	want := []string{"MountDevice a", "SetUp uid-first", "SetUp uid-first", "TearDown uid-first", "UnmountDevice pv-a", "MountDevice a", "SetUp uid-other"}
	if diff := cmpDiff(want, d.log()); diff != "" {
		t.Error(diff)
	}
	mustTearDown(t, manager, other)
	w.assertNoDevices()
}

// Where only the unfinished set-up has a record, the mount table says which
// label the device has.
func TestLabelOfADeviceThatOnlyAnUnfinishedSetUpKeeps(t *testing.T) {
	w := newWorld(t)
	w.seLinuxMount = true
	d := w.withLabels(false, v1.ReadWriteMany)
	manager, stop := w.start()
	first, other := labelledPod("first", "s0:c1,c2"), labelledPod("other", "s0:c8,c9")
	mustSetUp(t, manager, first)
	stop()
	w.unfinishedRecord(other, "s0:c8,c9")
	manager, stop = w.start()
	mustTearDown(t, manager, first)
	stop()
	d.log()
	manager, _ = w.start()
	mustSetUp(t, manager, other)
	if diff := cmpDiff([]string{"UnmountDevice pv-a", "MountDevice a", "SetUp uid-other"}, d.log()); diff != "" {
		t.Error(diff)
	}
	mustTearDown(t, manager, other)
	w.assertNoDevices()
}
