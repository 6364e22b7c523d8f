package main

import (
	"log/slog"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// loggedEvents writes the events about pods to a log: that a set-up takes long
// and how far it is, that a volume cannot be given to a group. Failures are left
// out, since they have rows.
type loggedEvents struct {
	log    *slog.Logger
	rename func(string) string
}

var _ volume.EventSink = loggedEvents{}

// Event implements volume.EventSink.
func (e loggedEvents) Event(pod *v1.Pod, _, reason, message string) {
	if !strings.HasPrefix(reason, "Failed") {
		e.log.Warn(e.rename(message), "pod", pod.Namespace+"/"+pod.Name, "reason", reason)
	}
}
