package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/localdiscovery"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// loggedEvents writes the events about pods to a log: as warnings that a set-up takes long
// and how far it is, as information that a volume has grown, also where the log
// is one of warnings. Failures are left out, since they have rows.
type loggedEvents struct {
	log    *slog.Logger
	rename func(string) string
}

var _ volume.EventSink = loggedEvents{}

// Event implements volume.EventSink.
func (e loggedEvents) Event(pod *v1.Pod, eventType, reason, message string) {
	if strings.HasPrefix(reason, "Failed") {
		return
	}
	level := slog.LevelInfo
	if eventType == v1.EventTypeWarning {
		level = slog.LevelWarn
	}
	line := slog.NewRecord(time.Now(), level, e.rename(message), 0)
	line.Add("pod", pod.Namespace+"/"+pod.Name, "reason", reason)
	_ = e.log.Handler().Handle(context.Background(), line) // an unwritable log ends no command, as with slog.Logger
}

// missingStorage notes which volumes are deleted of which nothing was there.
type missingStorage struct {
	mu    sync.Mutex
	names map[string]bool
}

// Event implements persistentvolume.EventRecorder.
func (m *missingStorage) Event(object runtime.Object, _, reason, _ string) {
	pv, ok := object.(*v1.PersistentVolume)
	if !ok || reason != persistentvolume.ReasonStorageMissing {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.names == nil {
		m.names = make(map[string]bool)
	}
	m.names[pv.Name] = true
}

func (m *missingStorage) has(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.names[name]
}

// storageEvents writes what goes wrong with claims and volumes to a log.
type storageEvents struct {
	log    *slog.Logger
	rename func(string) string
}

// Event implements persistentvolume.EventRecorder.
func (e storageEvents) Event(object runtime.Object, eventType, reason, message string) {
	about, ok := object.(metav1.Object)
	if eventType != v1.EventTypeWarning || !ok || reason == localdiscovery.ReasonMissing { // which the discoverer logs itself
		return
	}
	name := about.GetName()
	if about.GetNamespace() != "" {
		name = about.GetNamespace() + "/" + name
	}
	e.log.Warn(e.rename(message), "object", fmt.Sprintf("%s %s", object.GetObjectKind().GroupVersionKind().Kind, name), "reason", reason)
}
