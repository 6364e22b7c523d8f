package volumemanager_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumesource"
)

func TestStatusAsJSON(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("east", 3600))
	full := volumemanager.VolumeStatus{
		Pod: types.NamespacedName{Namespace: "shop", Name: "web"}, PodUID: "u", NodeName: "node1", Volume: "v", Plugin: "kubernetes.io/nfs", Source: "s:/e", Claim: types.NamespacedName{Namespace: "shop", Name: "data"},
		PersistentVolume: "pv-1", State: volumemanager.StateFailed, Path: "/p", Since: at, Duration: 1500 * time.Millisecond, Wanted: true,
		Operation: "set-up", Began: at, Progress: volume.Progress{Doing: "unpacking", Done: 3}, Failures: 3, NextRetry: at,
		Err: &volume.Error{Op: "SetUp", Err: volume.NothingDone(mount.ErrHelperMissing)},
	}
	tests := map[string]struct {
		status volumemanager.VolumeStatus
		want   map[string]any
	}{
		"everything": {full, map[string]any{
			"namespace": "shop", "pod": "web", "podUID": "u", "node": "node1", "volume": "v", "plugin": "kubernetes.io/nfs", "source": "s:/e", "claim": "shop/data", "persistentVolume": "pv-1",
			"state": "failed", "path": "/p", "since": "2026-01-02T02:04:05Z", "durationSeconds": 1.5, "wanted": true,
			"operation": "set-up", "began": "2026-01-02T02:04:05Z", "progress": map[string]any{"doing": "unpacking", "done": 3.0}, "failures": 3.0, "nextRetry": "2026-01-02T02:04:05Z",
			"error": full.Err.Error(), "cause": "HelperMissing",
		}},
		"advice": {volumemanager.VolumeStatus{State: volumemanager.StateFailed, Err: fmt.Errorf("set up: %w", volume.NothingDone(&volume.Failure{What: "it is broken", Next: "mend it"}))}, map[string]any{
			"namespace": "", "pod": "", "podUID": "", "volume": "", "plugin": "", "source": "", "state": "failed", "path": "",
			"durationSeconds": 0.0, "wanted": false, "failures": 0.0,
			"error": "set up: it is broken; mend it", "cause": "Unknown", "advice": "mend it",
		}},
		"waiting": {volumemanager.VolumeStatus{State: volumemanager.StatePending, Kept: true,
			Attachment: &volumemanager.AttachmentError{Volume: "example.com/disk/a", Node: "node1", ReportedInUse: true}}, map[string]any{
			"namespace": "", "pod": "", "podUID": "", "volume": "", "plugin": "", "source": "", "state": "pending", "path": "",
			"durationSeconds": 0.0, "wanted": false, "kept": true, "failures": 0.0,
			"attachment": "example.com/disk/a waits to be reported attached to node node1",
			"waitsFor":   "example.com/disk/a to be reported attached to node node1",
		}},
		"nothing": {volumemanager.VolumeStatus{}, map[string]any{
			"namespace": "", "pod": "", "podUID": "", "volume": "", "plugin": "", "source": "", "state": "", "path": "",
			"durationSeconds": 0.0, "wanted": false, "failures": 0.0,
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			text, err := json.Marshal([]volumemanager.VolumeStatus{tc.status})
			if err != nil {
				t.Fatal(err)
			}
			var got []map[string]any
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]map[string]any{tc.want}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestWaitsFor(t *testing.T) {
	silent := volumesource.Health{Source: "nas1", Since: time.Unix(1, 0)}
	claim := types.NamespacedName{Namespace: "shop", Name: "data"}
	for want, s := range map[string]volumemanager.VolumeStatus{
		"":                            {State: volumemanager.StateMounted, Server: silent, Err: errors.New("a refresh failed")},
		"claim shop/data to be bound": {State: volumemanager.StatePending, Err: &volume.Error{Err: &claimbinding.Error{Claim: claim, Err: claimbinding.ErrUnbound}}},
		"claim shop/made to be bound": {State: volumemanager.StatePending, Err: volume.NothingDone(&index.UnboundError{Claim: types.NamespacedName{Namespace: "shop", Name: "made"}, Err: index.ErrWaitsForConsumer})},
		"the other pod that has the volume to leave this node":         {State: volumemanager.StateFailed, Err: &volume.Failure{Cause: volumemanager.ErrUsedByOtherPod}},
		"server nas1 to answer":                                        {State: volumemanager.StateFailed, Server: silent, Err: errors.New("no answer")},
		"the file system that was at /p to be out of use":              {State: volumemanager.StateDetached, Server: silent, Err: &lazyunmount.Error{Mount: mount.Entry{Target: "/p"}}},
		volume.NewObjectRef("Secret", "a", "b").String() + " to exist": {State: volumemanager.StateFailed, Err: &volume.ObjectNotFoundError{Ref: volume.NewObjectRef("Secret", "a", "b")}},
	} {
		if got := s.WaitsFor(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestCausesInJSON(t *testing.T) {
	for word, err := range map[string]error{
		"Unknown":        errors.New("x"),
		"NotFound":       fmt.Errorf("look up: %w", &volume.ObjectNotFoundError{}),
		"MissingRole":    &volume.MissingRoleError{},
		"InvalidSpec":    volume.Invalid("f", "x"),
		"ClaimUnbound":   claimbinding.ErrUnbound,
		"TimedOut":       mount.ErrTimedOut,
		"Replaced":       errors.Join(errors.New("x"), volumemanager.ErrReplaced),
		"Full":           fmt.Errorf("set up: %w", &volume.Failure{Cause: wordedCause("Full"), Err: context.DeadlineExceeded}),
		"UsedByOtherPod": &volume.Failure{Cause: volumemanager.ErrUsedByOtherPod},
	} {
		text, marshalErr := json.Marshal(volumemanager.VolumeStatus{Err: err})
		var got struct {
			Cause     string
			Uncertain bool
		}
		if err := json.Unmarshal(text, &got); marshalErr != nil || err != nil || got.Cause != word {
			t.Errorf("%s: %s, %v, %v", word, text, marshalErr, err)
		}
		if got.Uncertain != volume.IsUncertain(err) {
			t.Errorf("%s: uncertain is %v", word, got.Uncertain)
		}
	}
}

// wordedCause is a plugin's own.
type wordedCause string

func (c wordedCause) Error() string     { return string(c) }
func (c wordedCause) CauseWord() string { return string(c) }

// Subscribers can count operations: each is told of once, with its outcome.
func TestSubscribersSeeEachOperationEndOnce(t *testing.T) {
	// In real time the failure may come a second time.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, _ := w.start()
		var mu sync.Mutex
		var ended []string
		stop := manager.Subscribe(func(s volumemanager.VolumeStatus) {
			mu.Lock()
			defer mu.Unlock()
			if s.Ended != "" {
				ended = append(ended, fmt.Sprintf("%s %s %v", s.Volume, s.Ended, s.Err == nil))
			}
		})
		pod := newPod("web", emptyDirVolume("scratch", ""))
		bad := newPod("bad", claimVolume("data", "missing", false))
		if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if _, err := manager.SetUpPod(t.Context(), bad); err == nil {
			t.Fatal("a missing claim was mounted")
		}
		if err := errors.Join(manager.TearDownPod(t.Context(), bad.UID), manager.TearDownPod(t.Context(), pod.UID)); err != nil {
			t.Fatal(err)
		}
		stop()
		want := []string{"scratch set-up true", "data set-up false", "scratch tear-down true"}
		if diff := cmp.Diff(want, ended); diff != "" {
			t.Error(diff)
		}
	})
}
