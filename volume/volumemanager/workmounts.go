package volumemanager

import (
	"context"
	"errors"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
)

// sweepWork begins to unmount what plugins of a dead owner mounted for
// themselves. Nothing waits for it: a server may be dead.
func (m *Manager) sweepWork(ctx context.Context) {
	for _, p := range m.config.Plugins {
		plugin, ok := volume.AsWorkMount(p)
		if !ok {
			continue
		}
		m.running.Go(func() {
			if err := plugin.SweepWork(ctx); err != nil {
				m.log.Warn("what a plugin had mounted for itself is not all gone", "plugin", plugin.GetPluginName(), "error", err)
			}
		})
	}
}

// worksAt returns the plugin that mounts at a path for itself.
func (m *Manager) worksAt(path string) (volume.WorkMountPlugin, bool) {
	for _, p := range m.config.Plugins {
		if plugin, ok := volume.AsWorkMount(p); ok && pathin.Strictly(plugin.GetWorkDir(), path) {
			return plugin, true
		}
	}
	return nil, false
}

// leftWork is what a plugin mounted for itself, and left.
func leftWork(plugin volume.WorkMountPlugin, path string) Problem {
	return Problem{Kind: ProblemWorkMount, Path: path,
		Err:    errors.New("plugin " + plugin.GetPluginName() + " had mounted this for work of its own, and did not come to unmount it"),
		Repair: "unmount it and remove its empty directory",
		repair: func(ctx context.Context, _ *Manager) error { return plugin.SweepWork(ctx) }}
}
