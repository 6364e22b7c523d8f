package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// explained is what records say is there.
type explained struct {
	volumes  map[rootdir.Key]bool
	subPaths map[containermounts.SubPaths]bool
	pods     map[types.UID]bool
	devices  []string // where devices are mounted, or bound
	// incomplete: there may be more than the records say.
	incomplete bool
}

func (m *Manager) explain(found []*mountrecord.Record, unreadable []*UnreadableRecordError, damaged *DamagedError) *explained {
	known := &explained{volumes: make(map[rootdir.Key]bool), subPaths: make(map[containermounts.SubPaths]bool), pods: make(map[types.UID]bool)}
	add := func(key rootdir.Key) {
		known.volumes[key], known.subPaths[subPathsOf(key)], known.pods[key.PodUID] = true, true, true
	}
	for _, r := range found {
		add(rootdir.KeyOf(r))
		m.explainDevice(known, r)
	}
	for _, err := range unreadable {
		if key, ok := rootdir.ParseKey(err.Volume); ok {
			add(key)
		}
	}
	known.incomplete = known.incomplete || len(unreadable) > 0 || damaged != nil
	return known
}

// explainDevice adds where a recorded volume has its device mounted.
func (m *Manager) explainDevice(known *explained, r *mountrecord.Record) {
	if c := r.Confirmed; c != nil && c.Device != nil {
		known.devices = append(known.devices, c.Device.Bind, c.Device.Node)
	}
	plugin, err := m.plugins.FindPluginByName(r.Plugin)
	if err != nil {
		known.incomplete = true
		return
	}
	use, err := deviceOf(plugin, r.Spec(), r.PodUID)
	if err != nil {
		known.incomplete = true
		return
	}
	switch {
	case use == nil || use.device.path == "":
	case use.block == nil:
		known.devices = append(known.devices, use.device.path)
	default:
		known.devices = append(known.devices, use.bindOf(r.PodUID))
		known.addStaged(use, r)
	}
}

// addStaged adds where a plugin may have mounted something for a block volume.
func (known *explained) addStaged(use *deviceUse, r *mountrecord.Record) {
	unmapper, err := use.block.NewBlockVolumeUnmapper(r.Spec().Name(), r.PodUID)
	if err != nil {
		known.incomplete = true
		return
	}
	if staged := unmapper.GetStagingPath(); staged != "" {
		known.devices = append(known.devices, staged)
	}
}

func (known *explained) isDevice(path string) bool {
	return slices.ContainsFunc(known.devices, func(dir string) bool { return path == dir || pathin.Strictly(dir, path) })
}

// strayMounts are mounts at places of sub-paths, devices and plugins' own work
// that no record explains.
func (m *Manager) strayMounts(mounted rootdir.Mounts, known *explained) (problems []Problem) {
	seen := make(map[containermounts.SubPaths]bool)
	for target, count := range mounted.Targets {
		path, ok := mounted.Shown(target)
		if !ok {
			continue
		}
		if key, dir, ok := m.subPathOf(path); ok {
			if !known.subPaths[key] && !seen[key] {
				seen[key] = true
				problems = append(problems, m.straySubPath(key, dir, known))
			}
		} else if plugin, ok := m.worksAt(path); ok {
			problems = append(problems, leftWork(plugin, path))
		} else if m.isDevicePlace(path) && !known.isDevice(path) {
			problems = append(problems, m.strayDevice(path, count, known))
		}
	}
	slices.SortFunc(problems, func(a, b Problem) int { return strings.Compare(a.Path, b.Path) })
	return problems
}

// isDevicePlace reports whether a path is one where a device may be mounted for
// all pods, or bound for one.
func (m *Manager) isDevicePlace(path string) bool {
	return pathin.Strictly(filepath.Join(m.host.RootDir, "plugins"), path)
}

// isBlockPlace reports whether a path below plugins/ is one of raw devices, in
// the kubelet's layout: volumeDevices/<volume>/<podUID>.
func isBlockPlace(path string) bool {
	return slices.Contains(strings.Split(path, string(filepath.Separator)), "volumeDevices")
}

// subPathOf returns whose sub-path a path below pods/ is, and the directory of
// all those of its volume.
func (m *Manager) subPathOf(path string) (key containermounts.SubPaths, dir string, ok bool) {
	rest, ok := pathin.Cut(rootdir.PodsDir(m.host.RootDir), path)
	parts := strings.Split(rest, string(filepath.Separator))
	if !ok || len(parts) < 4 {
		return containermounts.SubPaths{}, "", false
	}
	key = containermounts.SubPaths{PodUID: types.UID(parts[0]), Spec: parts[2]}
	dir = key.Dir(m.host.RootDir)
	return key, dir, pathin.Strictly(dir, path)
}

func (m *Manager) straySubPath(key containermounts.SubPaths, dir string, known *explained) Problem {
	p := Problem{Kind: ProblemStraySubPath, PodUID: key.PodUID, Volume: key.Spec, Path: dir,
		Err: errors.New("parts of a volume are mounted here for containers, but no record knows the volume")}
	switch {
	case known.incomplete:
		p.Advice = "Some records cannot be read, and one of them may explain it; see to these first."
	case !known.pods[key.PodUID] && !m.config.Adopt:
		p.Advice = "If no other agent uses this root directory, --adopt unmounts them."
	default:
		p.Repair = "unmount what is mounted below it, and remove the empty directories"
		p.repair = func(ctx context.Context, m *Manager) error {
			detached, err := m.containers.Unbind(ctx, key)
			if detached != nil {
				err = errors.Join(err, detached)
			}
			return errors.Join(err, m.podDirs.RemoveEmpty(ctx, m.host.RootDir, key.PodUID))
		}
	}
	return p
}

func (m *Manager) strayDevice(path string, count int, known *explained) Problem {
	p := Problem{Kind: ProblemStrayDevice, Path: path, Err: errors.New("something is mounted here for all pods of the node, and no record of a volume needs it")}
	own := slices.ContainsFunc(m.config.Plugins, func(plugin volume.VolumePlugin) bool {
		_, mounts := volume.AsDeviceMountable(plugin)
		return mounts && pathin.Strictly(m.host.GetPluginDir(plugin.GetPluginName()), path)
	})
	switch {
	case known.incomplete:
		p.Advice = "Some records cannot be read, and one of them may explain it; see to these first."
	case isBlockPlace(path):
		p.PodUID = types.UID(filepath.Base(path))
		p.Err = errors.New("a device is bound here for a pod of which nothing else is left")
		p.Advice = "When nobody needs the device: losetup -j " + path + " shows the loop device that holds it, losetup -d ends that; then umount " + path + "."
	case !own:
		p.Advice = "Find out who mounts here; umount " + path + " when it is not needed."
	case !m.config.Adopt:
		p.Advice = "If no other agent uses this root directory, --adopt unmounts it."
	default:
		p.Repair = "unmount it and remove its empty directory"
		p.repair = func(ctx context.Context, m *Manager) error {
			if err := m.unstack(ctx, path, count); err != nil {
				return err
			}
			return podmount.RemoveDir(path)
		}
	}
	return p
}

// mountProblems are mounts that no record explains, or not all of them.
func (m *Manager) mountProblems(mounted rootdir.Mounts, known *explained) (problems []Problem) {
	for target, count := range mounted.Targets {
		path, ok := mounted.Shown(target)
		if !ok || !pathin.Strictly(rootdir.PodsDir(m.host.RootDir), path) {
			continue
		}
		if _, _, ok := m.subPathOf(path); ok {
			continue
		}
		key, isVolume := rootdir.KeyOfPath(m.host.RootDir, path)
		switch {
		case !isVolume:
			problems = append(problems, Problem{Kind: ProblemStrayMount, Path: path, PodUID: key.PodUID,
				Err:    errors.New("something is mounted here that is no volume"),
				Advice: "Find out who mounts here; umount " + path + " when it is not needed."})
		case count > 1 && known.volumes[key]:
			problems = append(problems, Problem{Kind: ProblemStacked, Path: path, PodUID: key.PodUID, Volume: key.Spec,
				Err:    fmt.Errorf("%d mounts lie on top of each other", count),
				Repair: fmt.Sprintf("unmount the upper %d", count-1),
				repair: func(ctx context.Context, m *Manager) error { return m.unstack(ctx, path, count-1) }})
		}
	}
	slices.SortFunc(problems, func(a, b Problem) int { return strings.Compare(a.Path, b.Path) })
	return problems
}

// unstack unmounts the upper mounts, normally: what uses them is not torn away.
func (m *Manager) unstack(ctx context.Context, path string, n int) error {
	for range n {
		if _, err := mount.Unmount(ctx, m.host.Mounter, path, mount.UnmountOptions{}); err != nil {
			return err
		}
	}
	return nil
}
