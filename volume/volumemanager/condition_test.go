package volumemanager_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins"
)

// sensing has the volumes of a plugin tell a condition.
type sensing struct {
	volume.VolumePlugin
	storage *storage
}

// storage is what volumes tell; it is changed between measurements only.
type storage struct {
	condition *volume.Condition
	err       error
}

func (s *storage) measure() (*volume.Metrics, error) {
	return &volume.Metrics{Time: metav1.Now(), Condition: s.condition}, s.err
}

func (p sensing) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	m, err := p.VolumePlugin.NewMounter(spec, pod)
	return sensed{m, p.storage}, err
}

type sensed struct {
	volume.Mounter
	storage *storage
}

func (s sensed) GetMetrics(context.Context) (*volume.Metrics, error) { return s.storage.measure() }

// sensingAll are the usual plugins with conditions.
func sensingAll(s *storage) func() []volume.VolumePlugin {
	return func() (all []volume.VolumePlugin) {
		for _, p := range plugins.All() {
			all = append(all, sensing{p, s})
		}
		return all
	}
}

func (w *world) abnormal() (found []string) {
	for _, e := range w.events.all() {
		if strings.Contains(e, "VolumeConditionAbnormal") {
			found = append(found, e)
		}
	}
	slices.Sort(found)
	return found
}

// A measurement shows what the storage says of a volume, to every pod that has it, and tells
// the pods once for each change to something abnormal.
func TestConditionIsShownAndTold(t *testing.T) {
	w := newWorld(t)
	claim, pv := boundPair("nfs-211", "nfs211")
	w.add(claim, pv)
	says := &storage{condition: &volume.Condition{}}
	w.plugins = sensingAll(says)
	manager, _ := w.start()
	one := newPod("one", claimVolume("data", "nfs-211", false), emptyDirVolume("scratch", v1.StorageMediumDefault))
	two := newPod("two", claimVolume("mine", "nfs-211", false))
	mustSetUp(t, manager, one)
	mustSetUp(t, manager, two)
	conditions := func() (shown []*volume.Condition) {
		for _, row := range manager.Explain() { // one's data and scratch, two's mine
			shown = append(shown, row.Condition)
		}
		return shown
	}
	if got := conditions(); !slices.Equal(got, []*volume.Condition{nil, nil, nil}) {
		t.Errorf("before a measurement: %v", got)
	}
	measure := func() {
		t.Helper()
		if _, err := manager.Metrics(t.Context(), one.UID, "data"); !errors.Is(err, says.err) {
			t.Error(err)
		}
	}
	measure()
	if got := conditions(); got[0] == nil || got[0].Abnormal || got[1] != nil || got[2] == nil || len(w.abnormal()) > 0 {
		t.Errorf("in order: %v, events %q", got, w.abnormal())
	}
	says.condition = &volume.Condition{Abnormal: true, Message: "a disk has failed"}
	measure()
	measure()
	both := []string{"one Warning VolumeConditionAbnormal Volume data: a disk has failed", "two Warning VolumeConditionAbnormal Volume mine: a disk has failed"}
	if got := conditions(); *got[0] != *says.condition || got[1] != nil || *got[2] != *says.condition || !slices.Equal(w.abnormal(), both) {
		t.Errorf("abnormal: %v, events %q", got, w.abnormal())
	}
	if text, err := json.Marshal(manager.Explain()[0]); err != nil || !strings.Contains(string(text), `"condition":"a disk has failed"`) {
		t.Errorf("%s, %v", text, err)
	}
	says.err = errors.New("the size cannot be told")
	says.condition = &volume.Condition{}
	measure()
	says.condition = &volume.Condition{Abnormal: true, Message: "a disk has failed"}
	measure()
	if got := w.abnormal(); len(got) != 4 {
		t.Errorf("mended and broken anew: events %q", got)
	}
	if _, err := manager.Metrics(t.Context(), one.UID, "scratch"); !errors.Is(err, says.err) || len(w.abnormal()) != 5 {
		t.Errorf("of a volume without a claim: %v, events %q", err, w.abnormal())
	}
	mustTearDown(t, manager, one)
	mustTearDown(t, manager, two)
}

// sensingDisk has block volumes that can be measured.
type sensingDisk struct {
	*blockDisk
	storage *storage
}

type sensedDevice struct {
	volume.BlockVolumeMapper
	storage *storage
}

func (d sensingDisk) NewBlockVolumeMapper(spec *volume.Spec, pod *v1.Pod) (volume.BlockVolumeMapper, error) {
	m, err := d.blockDisk.NewBlockVolumeMapper(spec, pod)
	return sensedDevice{m, d.storage}, err
}

func (s sensedDevice) GetMetrics(context.Context) (*volume.Metrics, error) {
	return s.storage.measure()
}

// A block volume is measured by its own plugin, where that can.
func TestBlockVolumesAreMeasured(t *testing.T) {
	w := newWorld(t)
	d, _ := w.withBlockDisks()
	pod := blockPod("one", "a")
	manager, stop := w.start()
	mustSetUp(t, manager, pod)
	if _, err := manager.Metrics(t.Context(), pod.UID, pod.Spec.Volumes[0].Name); !errors.Is(err, volume.ErrMetricsUnsupported) {
		t.Errorf("without numbers: %v", err)
	}
	stop()
	says := &storage{condition: &volume.Condition{Abnormal: true, Message: "slow"}}
	w.plugins = besides(sensingDisk{d, says})
	manager, _ = w.start()
	mustSetUp(t, manager, pod)
	if m, err := manager.Metrics(t.Context(), pod.UID, pod.Spec.Volumes[0].Name); err != nil || m.Condition != says.condition {
		t.Errorf("%+v, %v", m, err)
	}
	rows := manager.ExplainPod(pod.UID)
	if len(rows) != 1 || rows[0].Condition == nil || *rows[0].Condition != *says.condition || len(w.abnormal()) != 1 {
		t.Errorf("%+v, events %q", rows, w.abnormal())
	}
	mustTearDown(t, manager, pod)
}
