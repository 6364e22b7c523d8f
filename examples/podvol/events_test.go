package main

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fsgroup"
	"github.com/podvol/podvol/volume/volumemanager"
)

func TestEventsAreLoggedUnlessTheyHaveRows(t *testing.T) {
	var out bytes.Buffer
	events := loggedEvents{slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})), func(s string) string { return strings.ReplaceAll(s, "/tmp/x", "/root") }}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	events.Event(pod, v1.EventTypeWarning, "FailedMount", "no")
	events.Event(pod, v1.EventTypeWarning, "VolumePermissionChangeInProgress", "slow below /tmp/x")
	events.Event(pod, v1.EventTypeNormal, "FileSystemResizeSuccessful", "it has 2Mi")
	if got := out.String(); !strings.Contains(got, `level=INFO msg="it has 2Mi"`) || !strings.Contains(got, `level=WARN msg="slow below /root" pod=shop/web reason=VolumePermissionChangeInProgress`) || strings.Contains(got, "FailedMount") {
		t.Errorf("logged %q", got)
	}
}

func TestTerminalShowsHowFarVolumesAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReport(failurePrinter{io.Discard}, io.Discard, volumemanager.StateMounted, []rows.Key{{Pod: "u", Volume: "data"}, {Pod: "u", Volume: "other"}})
		var terminal lockedBuffer
		r.progress = &progress{terminal: &terminal}
		err := r.run(idleManager(t), func(show func(volumemanager.VolumeStatus)) {
			v := statusRow("data", volumemanager.StatePending, nil)
			v.Progress = volume.Progress{Doing: fsgroup.Doing, Done: 3000}
			r.note(v)
			time.Sleep(1500 * time.Millisecond)
		})
		if want := "Waiting for 2 volumes (1s): data (setting the owner of files: 3000), other"; err != nil || !strings.Contains(terminal.String(), want) {
			t.Errorf("the terminal shows %q, %v; want %q", terminal.String(), err, want)
		}
	})
}
