package persistentvolume_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
)

// modifier is a plugin that changes volumes.
type modifier struct {
	*storage

	mu    sync.Mutex
	err   error
	takes time.Duration
	asked []string // class and parameters
}

func (m *modifier) Modify(_ context.Context, spec *volume.Spec, class *storagev1.VolumeAttributesClass) error {
	m.mu.Lock()
	takes, err := m.takes, m.err
	m.asked = append(m.asked, fmt.Sprintf("%s: %s %v", spec.Name(), class.Name, class.Parameters))
	m.mu.Unlock()
	time.Sleep(takes)
	return err
}

func (m *modifier) fails(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *modifier) calls() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprint(m.asked)
}

// modifierWorld has a bound claim with the attributes "gold", whose plugin changes volumes.
func modifierWorld(t *testing.T) (*world, *modifier) {
	m := new(modifier)
	w := newWorld(t, storageClass("fast"), attributesClass("gold", storagePlugin), attributesClass("silver", storagePlugin),
		pvbuild.NewPV("pv", "1Gi", pvbuild.Class("fast"), pvbuild.WithAttributes("gold")), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"), pvbuild.WantsAttributes("gold")))
	w.withPlugin(func(made *storage) volume.VolumePlugin {
		m.storage = made
		return m
	})
	w.start()
	w.settle()
	w.wantBound("data", "pv")
	return w, m
}

func (w *world) wantCondition(claim string, want v1.PersistentVolumeClaimConditionType) {
	w.t.Helper()
	var got v1.PersistentVolumeClaimConditionType
	for _, c := range w.claim(claim).Status.Conditions {
		if c.Type == v1.PersistentVolumeClaimVolumeModifyingVolume || c.Type == v1.PersistentVolumeClaimVolumeModifyVolumeError {
			got += c.Type
		}
	}
	if got != want {
		w.t.Errorf("claim %s has the condition %q, want %q", claim, got, want)
	}
}

func TestPluginModifiesAVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, m := modifierWorld(t)
		w.askAttributes("data", "silver")
		w.wantAttributes("data", "silver", "", "")
		w.wantCondition("data", "")
		if got := ptr.Deref(w.pv("pv").Spec.VolumeAttributesClassName, ""); got != "silver" {
			t.Errorf("the volume has the attributes %q", got)
		}
		if got := m.calls(); got != "[pv: silver map[iops:100]]" {
			t.Errorf("asked for %s", got)
		}
		w.events.want(t, `data: Normal VolumeModifySuccessful the volume has the VolumeAttributesClass "silver"`)
		w.wantQuiet(0)
	})
}

// A class that is not there yet is given once it is.
func TestAttributesOfALateClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, m := modifierWorld(t)
		w.askAttributes("data", "lead")
		w.wantAttributes("data", "gold", "lead", v1.PersistentVolumeClaimModifyVolumePending)
		w.events.want(t, `data: Warning VolumeModifyFailed volumeattributesclass.storage.k8s.io "lead" not found; create it`)
		if got := m.calls(); got != "[]" {
			t.Errorf("asked for %s", got)
		}
		w.create(attributesClass("lead", storagePlugin))
		time.Sleep(5 * time.Minute)
		w.wantAttributes("data", "lead", "", "")
	})
}

// A failure is told and tried again. A claim that names another class meanwhile gets that, once
// no attempt at the first can be under way; what was found infeasible is not tried again.
func TestModificationThatFails(t *testing.T) {
	const inProgress = v1.PersistentVolumeClaimModifyVolumeInProgress
	for name, tc := range map[string]struct {
		err       error
		state     v1.PersistentVolumeClaimModifyVolumeStatus
		condition v1.PersistentVolumeClaimConditionType
		goesBack  bool // when the claim names its old class again
	}{
		"for certain": {volume.NothingDone(errors.New("the pool is full")), inProgress, v1.PersistentVolumeClaimVolumeModifyingVolume + v1.PersistentVolumeClaimVolumeModifyVolumeError, true},
		"perhaps":     {errors.New("no answer"), inProgress, v1.PersistentVolumeClaimVolumeModifyingVolume + v1.PersistentVolumeClaimVolumeModifyVolumeError, false},
		"for good": {volume.NothingDone(fmt.Errorf("%w: no such tier", volume.ErrModifyInfeasible)), v1.PersistentVolumeClaimModifyVolumeInfeasible,
			v1.PersistentVolumeClaimVolumeModifyVolumeError, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, m := modifierWorld(t)
				m.fails(tc.err)
				w.askAttributes("data", "silver")
				w.wantAttributes("data", "gold", "silver", tc.state)
				w.wantCondition("data", tc.condition)
				w.events.want(t, "data: Warning VolumeModifyFailed it is not given the VolumeAttributesClass \"silver\": "+tc.err.Error())
				w.wantMissing("data", tc.err.Error())
				before := m.calls()
				time.Sleep(time.Hour)
				if again := m.calls() != before; again != (tc.state == inProgress) {
					t.Errorf("tried again: %v", again)
				}
				w.askAttributes("data", "gold")
				if tc.goesBack {
					w.wantAttributes("data", "gold", "", "")
					w.wantCondition("data", "")
				} else {
					w.wantAttributes("data", "gold", "silver", tc.state)
				}
				m.fails(nil)
				w.askAttributes("data", "silver")
				time.Sleep(time.Hour)
				w.wantAttributes("data", "silver", "", "")
			})
		})
	}
}

// A process that dies while a volume is changed leaves nothing half: the next one asks again.
func TestModificationOutlivesItsController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, m := modifierWorld(t)
		m.mu.Lock()
		m.takes = time.Minute
		m.mu.Unlock()
		w.changeClaim("data", pvbuild.WantsAttributes("silver"))
		time.Sleep(time.Second)
		w.wantAttributes("data", "gold", "silver", v1.PersistentVolumeClaimModifyVolumeInProgress)
		w.wantCondition("data", v1.PersistentVolumeClaimVolumeModifyingVolume)
		w.stop()
		w.start()
		time.Sleep(10 * time.Minute)
		w.settle()
		w.wantAttributes("data", "silver", "", "")
		if got := m.calls(); got != "[pv: silver map[iops:100] pv: silver map[iops:100]]" {
			t.Errorf("asked for %s", got)
		}
	})
}

// A plugin that cannot change volumes is named: nobody else will.
func TestAPluginThatModifiesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast"), attributesClass("gold", storagePlugin), pvbuild.NewPV("pv", "1Gi", pvbuild.Class("fast")), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))).withStorage()
		w.start()
		w.settle()
		w.askAttributes("data", "gold")
		w.wantAttributes("data", "", "gold", v1.PersistentVolumeClaimModifyVolumePending)
		w.events.want(t, `data: Warning VolumeModifyFailed it is not given the VolumeAttributesClass "gold": the plugin `+storagePlugin+` cannot change volumes`)
	})
}
