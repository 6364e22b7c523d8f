package volumemanager

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// mountWatch notices mounts that vanish though nothing here has unmounted them.
type mountWatch struct {
	entries  *entries
	devices  *devices.Table
	schedule *schedule
	status   *publisher
	host     *volume.Host
	events   volume.EventSink // nil: none
	log      *slog.Logger
}

// standing is a volume whose mounts should be in the table, as it was before the
// table was read.
type standing struct {
	of         *podVolume
	record     *mountrecord.Record
	generation int
	paths      []string
}

// lookForVanished compares the table with the known mounts. Vanished ones are
// mounted again where wanted.
func (w *mountWatch) lookForVanished() {
	expected := w.standing()
	if len(expected) == 0 {
		return
	}
	mounted, err := rootdir.ReadMounts(w.host.RootDir, w.host.Mounter)
	if err != nil {
		w.log.Warn("the mount table cannot be read; mounts that vanish go unnoticed", "error", err)
		return
	}
	w.tellVanished(w.noteVanished(expected, mounted))
}

// noteVanished notes which mounts are gone, and returns what its pods are to be
// told.
func (w *mountWatch) noteVanished(expected []standing, mounted rootdir.Mounts) (gone []vanishedMount) {
	w.entries.Lock()
	defer w.entries.Unlock()
	for _, e := range expected {
		i := slices.IndexFunc(e.paths, func(path string) bool { return !mounted.Has(path) })
		if i >= 0 && w.vanished(e, e.paths[i]) {
			gone = append(gone, vanishedMount{e.of.pod.pod.Get(), e.of.names, e.paths[i]})
		}
	}
	return gone
}

// standing returns the volumes that are mounted and that nothing is done about.
func (w *mountWatch) standing() (expected []standing) {
	w.entries.Lock()
	defer w.entries.Unlock()
	for s := range w.entries.volumes() {
		r := s.actual.record
		if s.state != StateMounted || s.doing != opNone || r == nil || r.Confirmed == nil {
			continue
		}
		e := standing{of: s, record: r, generation: s.generation}
		if r.Confirmed.MountPoint {
			e.paths = append(e.paths, r.Path)
		}
		if device := r.Confirmed.Device; device != nil {
			e.paths = append(e.paths, device.Bind)
		}
		if path := w.devices.MountPoint(s.actual.device); path != "" {
			e.paths = append(e.paths, path)
		}
		if len(e.paths) > 0 {
			expected = append(expected, e)
		}
	}
	return expected
}

// vanished notes that a mount is gone, unless something was done about
// its volume meanwhile, and reports whether a pod that wants it is to be told.
// The caller holds the lock.
func (w *mountWatch) vanished(e standing, path string) (tell bool) {
	s := e.of
	if s.state != StateMounted || s.doing != opNone || s.actual.record != e.record || s.generation != e.generation {
		return false
	}
	wanted := s.IsWanted()
	s.enter(StateFailed, time.Now())
	s.err = fmt.Errorf("%w: another process has unmounted %s", ErrVanished, path)
	w.log.Warn("a mount has vanished: another process has unmounted it", "podUID", s.pod.uid, "volume", s.names[0], "path", path, "wanted", wanted)
	if wanted {
		w.schedule.resync(s)
	}
	w.status.publish(s)
	return wanted
}

// vanishedMount is what a pod is told of a mount that is gone.
type vanishedMount struct {
	pod   *v1.Pod
	names []string // the pod's volumes that it was
	path  string
}

// tellVanished tells the pods' owners: containers may still have the old mount.
// The sink may call the manager, so the caller must not hold the lock.
func (w *mountWatch) tellVanished(gone []vanishedMount) {
	if w.events == nil {
		return
	}
	for _, g := range gone {
		for _, name := range g.names {
			w.events.Event(g.pod, v1.EventTypeWarning, "VolumeMountVanished",
				fmt.Sprintf("the mount of volume %q at %s is gone: another process has unmounted it; it is set up again", name, g.path))
		}
	}
}
