package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
