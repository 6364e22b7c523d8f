package persistentvolume_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
)

// held is a plugin's calls that wait until they are let go on.
type held struct {
	mu    sync.Mutex
	calls []string
	goOn  map[string]chan struct{}
}

// hold has all of a plugin's calls wait.
func (s *storage) hold() *held {
	h := &held{goOn: make(map[string]chan struct{})}
	s.inTheMidst(func(ctx context.Context, do, pv string) error {
		select {
		case <-h.call(do + " " + pv):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	return h
}

func (h *held) call(call string) chan struct{} {
	h.mu.Lock()
	h.calls = append(h.calls, call)
	h.mu.Unlock()
	return h.gate(call)
}

func (h *held) gate(call string) chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.goOn[call] == nil {
		h.goOn[call] = make(chan struct{})
	}
	return h.goOn[call]
}

// release lets a call go on, and those like it that come later.
func (h *held) release(call string) { close(h.gate(call)) }

func (h *held) want(t *testing.T, calls ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.calls, calls) {
		t.Errorf("the plugin was asked for %q, want %q", h.calls, calls)
	}
}

// What was done for one reclaim policy is not what another asks for.
func TestTheReclaimPolicyChangesWhileTheVolumeIsReclaimed(t *testing.T) {
	for _, tc := range []struct {
		from, to      v1.PersistentVolumeReclaimPolicy
		first, second string
		gone          bool
	}{
		{v1.PersistentVolumeReclaimRecycle, v1.PersistentVolumeReclaimDelete, "Recycle pv", "Delete pv", true},
		{v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle, "Delete pv", "Recycle pv", false},
	} {
		t.Run(string(tc.from+" to "+tc.to), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, pvbuild.NewPV("pv", "1Gi", withPolicy(tc.from)), pvbuild.NewClaim("data", "1Gi")).withStorage()
				w.start()
				w.settle()
				calls := w.storage.hold()
				w.delete("PersistentVolumeClaim", "ops", "data")
				w.settle()
				w.change("pv", withPolicy(tc.to))
				w.settle()
				calls.want(t, tc.first) // one at a time
				calls.release(tc.first)
				w.settle()
				calls.want(t, tc.first, tc.second)
				w.wantPV("pv", v1.VolumeReleased)
				calls.release(tc.second)
				w.settle()
				if tc.gone {
					w.wantGone("PersistentVolume", "", "pv")
				} else {
					w.wantPV("pv", v1.VolumeAvailable)
				}
			})
		})
	}
}

// A volume that is being emptied for one release is not free, and not emptied for
// another meanwhile, whoever takes its claimRef away.
func TestAVolumeIsReclaimedForOneReleaseAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi", withPolicy(v1.PersistentVolumeReclaimRecycle)), pvbuild.NewClaim("one", "1Gi")).withStorage()
		w.start()
		w.settle()
		calls := w.storage.hold()
		w.delete("PersistentVolumeClaim", "ops", "one")
		w.settle()
		w.change("pv", pvbuild.ForClaim("two", "uid-two")) // as who restores a backup does
		w.settle()
		calls.want(t, "Recycle pv")
		w.change("pv", func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil })
		w.create(pvbuild.NewClaim("next", "1Gi"))
		w.settle()
		w.wantClaim("next", v1.ClaimPending)
		calls.release("Recycle pv")
		w.settle()
		w.wantBound("next", "pv")
		calls.want(t, "Recycle pv")
	})
}

// Calls that are never answered are told of, and hold up neither those of other
// classes nor, for long, those of their own.
func TestAPluginThatHangsHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("dead", made), storageClass("fast", made)).withStorage()
		w.start()
		w.storage.inTheMidst(func(ctx context.Context, _, pv string) error {
			if strings.HasPrefix(pv, "pvc-uid-dead") {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return nil
		})
		for i := range 20 {
			w.create(pvbuild.NewClaim(fmt.Sprintf("dead%02d", i), "1Gi", pvbuild.OfClass("dead")))
		}
		synctest.Wait()
		w.create(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
		w.create(pvbuild.NewClaim("same", "1Gi", pvbuild.OfClass("dead")))
		time.Sleep(time.Second)
		synctest.Wait()
		w.wantBound("data", "pvc-uid-data")
		w.wantClaim("same", v1.ClaimPending)
		w.settle()
		w.wantBound("same", "pvc-uid-same")
		for i := range 20 {
			w.events.want(t, fmt.Sprintf("dead%02d: Warning VolumePluginSlow the plugin has not answered for 30s", i))
		}
		why := w.controller.Explain(types.NamespacedName{Namespace: "ops", Name: "dead00"})
		if why == nil || !strings.Contains(why.Error(), "its volume is being made: the plugin has not answered for 30s") {
			t.Errorf("Explain says %v", why)
		}
	})
}

// The storage that may have been made for a claim that goes is looked for as soon
// as the class is back that knows where.
func TestAClassThatComesBackLetsTheClaimGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))).withStorage()
		w.startFailing(errors.New("the server does not answer"))
		w.settle()
		w.delete("StorageClass", "", "fast")
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.storage.fail(nil)
		w.create(storageClass("fast", made))
		synctest.Wait()
		w.wantGone("PersistentVolumeClaim", "ops", "data")
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
		if left := w.stored(); len(left) > 0 {
			t.Errorf("storage is left: %v", left)
		}
	})
}
