package persistentvolume_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// Who shows why claims are not bound is told once for each reason, and that
// there is none any more.
func TestChangesOfWhatIsExplainedAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewClaim("data", "1Gi"))
		data := types.NamespacedName{Namespace: "ops", Name: "data"}
		var told atomic.Int32
		w.config.Explained = func(claim types.NamespacedName) {
			told.Add(1)
			if claim != data {
				t.Errorf("told of %v", claim)
			}
		}
		w.start()
		label := func(value string) {
			claim := w.claim("data").DeepCopy()
			claim.Labels = map[string]string{"changed": value}
			if _, err := w.api.Update(t.Context(), claim); err != nil {
				t.Fatal(err)
			}
		}
		for _, step := range []struct {
			name  string
			do    func()
			times int32
			bound bool
		}{
			{"a volume is missing", func() {}, 1, false},
			{"nothing is new", func() { label("once") }, 0, false},
			{"there is a small one", func() { w.create(pvbuild.NewPV("small", "1Mi")); w.settle(); label("twice") }, 1, false},
			{"there is one that fits", func() { w.create(pvbuild.NewPV("large", "1Gi")) }, 1, true},
		} {
			step.do()
			w.settle()
			err := w.controller.Explain(data)
			if got := told.Swap(0); got != step.times {
				t.Errorf("%s: told %d times, want %d; %v", step.name, got, step.times, err)
			}
			if errors.Is(err, claimbinding.ErrUnbound) == step.bound || errors.Is(err, persistentvolume.ErrNotSynced) {
				t.Errorf("%s: %v", step.name, err)
			}
		}
	})
}

// The reason counts volumes that came since, though none of them is for the
// claim and nobody looks at it for them.
func TestTheReasonIsAsVolumesAreNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("")))
		w.start()
		data := types.NamespacedName{Namespace: "ops", Name: "data"}
		for _, step := range []struct {
			do   func()
			says string
		}{
			{func() {}, "there is no PersistentVolume"},
			{func() { w.create(pvbuild.NewPV("small", "1Mi")) }, "too small (small: 1Mi of 1Gi)"},
			{func() { w.create(pvbuild.NewPV("smaller", "1Ki")) }, "too small (smaller: 1Ki of 1Gi; small: 1Mi of 1Gi)"},
			{func() { w.delete("PersistentVolume", "", "smaller"); w.delete("PersistentVolume", "", "small") }, "there is no PersistentVolume"},
		} {
			step.do()
			w.settle()
			err := w.controller.Explain(data)
			if !errors.Is(err, claimbinding.ErrUnbound) || !strings.Contains(err.Error(), step.says) {
				t.Errorf("want %q: %v", step.says, err)
			}
		}
	})
}
