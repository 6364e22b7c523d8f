package persistentvolume_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
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
				w := newWorld(t, newPV("pv", "1Gi", withPolicy(tc.from)), newClaim("data", "1Gi")).withStorage()
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
		w := newWorld(t, newPV("pv", "1Gi", withPolicy(v1.PersistentVolumeReclaimRecycle)), newClaim("one", "1Gi")).withStorage()
		w.start()
		w.settle()
		calls := w.storage.hold()
		w.delete("PersistentVolumeClaim", "ops", "one")
		w.settle()
		w.change("pv", forClaim("two", "uid-two")) // as who restores a backup does
		w.settle()
		calls.want(t, "Recycle pv")
		w.change("pv", func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil })
		w.create(newClaim("next", "1Gi"))
		w.settle()
		w.wantClaim("next", v1.ClaimPending)
		calls.release("Recycle pv")
		w.settle()
		w.wantBound("next", "pv")
		calls.want(t, "Recycle pv")
	})
}
