package fsck

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// examination is one look for faults: the mounts, and the records.
type examination struct {
	Config
	mounted  rootdir.Mounts
	volumes  map[rootdir.Key]bool
	places   map[rootdir.Key]string // where the volumes are whose records were read, or made
	subPaths map[containermounts.SubPaths]bool
	pods     map[types.UID]bool
	devices  []string // where devices are mounted, or bound
	// unregistered has a record of each plugin that is not registered: it would say where
	// its devices are.
	unregistered map[string]*mountrecord.Record
	// incomplete: there may be more than the records say.
	incomplete bool
}

func newExamination(config Config, mounted rootdir.Mounts) *examination {
	return &examination{Config: config, mounted: mounted, volumes: make(map[rootdir.Key]bool), places: make(map[rootdir.Key]string), subPaths: make(map[containermounts.SubPaths]bool), pods: make(map[types.UID]bool), unregistered: make(map[string]*mountrecord.Record)}
}

// explain adds what records say is there, also those that cannot be read.
func (x *examination) explain(found []*mountrecord.Record, unreadable []*rootdir.UnreadableRecordError, damaged *rootdir.DamagedError) {
	add := func(key rootdir.Key) {
		x.volumes[key], x.subPaths[subPathsOf(key)], x.pods[key.PodUID] = true, true, true
	}
	for _, r := range found {
		add(rootdir.KeyOf(r))
		x.places[rootdir.KeyOf(r)] = r.Path
		x.explainDevice(r)
	}
	for _, err := range unreadable {
		if key, ok := rootdir.ParseKey(err.Volume); ok {
			add(key)
		}
	}
	x.incomplete = x.incomplete || len(unreadable) > 0 || damaged != nil
}

// explainDevice adds where a recorded volume has its device mounted.
func (x *examination) explainDevice(r *mountrecord.Record) {
	if c := r.Confirmed; c != nil && c.Device != nil {
		x.devices = append(x.devices, c.Device.Bind, c.Device.Node)
	}
	plugin, err := x.Plugins.FindPluginByName(r.Plugin)
	if err != nil {
		x.unregistered[r.Plugin] = r
		return
	}
	use, err := devices.Of(plugin, r.Spec(), r.PodUID)
	if err != nil {
		x.incomplete = true
		return
	}
	places, err := use.Places(r.Spec(), r.PodUID)
	x.devices = append(x.devices, places...)
	x.incomplete = x.incomplete || err != nil
}

func (x *examination) isDevice(path string) bool {
	return slices.ContainsFunc(x.devices, func(dir string) bool { return path == dir || pathin.Strictly(dir, path) })
}

// strayMounts are mounts at places of sub-paths, devices and plugins' own work
// that no record explains.
func (x *examination) strayMounts() (problems []Problem) {
	seen := make(map[containermounts.SubPaths]bool)
	for target, count := range x.mounted.Targets {
		path, ok := x.mounted.Shown(target)
		if !ok {
			continue
		}
		if key, dir, ok := x.subPathOf(path); ok {
			if !x.subPaths[key] && !seen[key] {
				seen[key] = true
				problems = append(problems, x.straySubPath(key, dir))
			}
		} else if plugin, ok := x.worksAt(path); ok {
			problems = append(problems, leftWork(plugin, path))
		} else if x.isDevicePlace(path) && !x.isDevice(path) {
			problems = append(problems, x.strayDevice(path, count))
		}
	}
	slices.SortFunc(problems, func(a, b Problem) int { return strings.Compare(a.Path, b.Path) })
	return problems
}

// isDevicePlace reports whether a path is one where a device may be mounted for
// all pods, or bound for one.
func (x *examination) isDevicePlace(path string) bool {
	return pathin.Strictly(filepath.Join(x.Host.RootDir, "plugins"), path)
}

// isBlockPlace reports whether a path below plugins/ is one of raw devices, in
// the kubelet's layout: volumeDevices/<volume>/<podUID>.
func isBlockPlace(path string) bool {
	return slices.Contains(strings.Split(path, string(filepath.Separator)), "volumeDevices")
}

// subPathOf returns the pod and volume that a path below pods/ is a sub-path of,
// and the directory of all sub-paths of that volume.
func (x *examination) subPathOf(path string) (key containermounts.SubPaths, dir string, ok bool) {
	rest, ok := pathin.Cut(rootdir.PodsDir(x.Host.RootDir), path)
	parts := strings.Split(rest, string(filepath.Separator))
	if !ok || len(parts) < 4 {
		return containermounts.SubPaths{}, "", false
	}
	key = containermounts.SubPaths{PodUID: types.UID(parts[0]), Spec: parts[2]}
	dir = key.Dir(x.Host.RootDir)
	return key, dir, pathin.Strictly(dir, path)
}

func (x *examination) straySubPath(key containermounts.SubPaths, dir string) Problem {
	p := Problem{Kind: StraySubPath, PodUID: key.PodUID, Volume: key.Spec, Path: dir,
		Err: errors.New("parts of a volume are mounted here for containers, but no record knows the volume")}
	switch {
	case x.incomplete:
		p.Advice = "Some records cannot be read, and one of them may explain it; see to these first."
	case !x.pods[key.PodUID] && !x.Adopt:
		p.Advice = "If no other agent uses this root directory, --adopt unmounts them."
	default:
		p.Repair = "unmount the mounts below it, and remove the empty directories"
		p.Do = func(ctx context.Context) error { return x.Owner.Unbind(ctx, key) }
	}
	return p
}

func (x *examination) strayDevice(path string, count int) Problem {
	p := Problem{Kind: StrayDevice, Path: path, Err: errors.New("something is mounted here for all pods of the node, and no record of a volume needs it")}
	own := slices.ContainsFunc(x.All, func(plugin volume.VolumePlugin) bool {
		_, mounts := volume.AsDeviceMountable(plugin)
		return mounts && pathin.Strictly(x.Host.GetPluginDir(plugin.GetPluginName()), path)
	})
	if r := x.unexplained(path); r != nil {
		p.Err = &volume.Failure{Cause: volume.ErrNoPlugin, Subject: r.Plugin,
			What: fmt.Sprintf("something is mounted here for all pods of the node, perhaps for volume %s of pod %s, whose plugin %s is not registered", strings.Join(r.Volumes, ", "), r.Pod, r.Plugin)}
		p.Advice = "Register the plugin " + r.Plugin + ", and check again."
		return p
	}
	switch {
	case x.incomplete:
		p.Advice = "Some records cannot be read, and one of them may explain it; see to these first."
	case isBlockPlace(path):
		p.PodUID = types.UID(filepath.Base(path))
		p.Err = errors.New("a device is bound here for a pod of which nothing else is left")
		p.Advice = "When no process needs the device: losetup -j " + path + " shows the loop device that holds it, losetup -d ends that; then umount " + path + "."
	case !own:
		p.Advice = "Find out who mounts here; umount " + path + " when it is not needed."
	case !x.Adopt:
		p.Advice = "If no other agent uses this root directory, --adopt unmounts it."
	default:
		p.Repair = "unmount it and remove its empty directory"
		p.Do = func(ctx context.Context) error {
			if err := unstack(ctx, x.Host.Mounter, path, count); err != nil {
				return err
			}
			return podmount.RemoveDir(path)
		}
	}
	return p
}

// unexplained returns a record whose plugin is not registered, if there is one: where the plugin
// would mount devices is not known, but most likely in its own directory.
func (x *examination) unexplained(path string) (r *mountrecord.Record) {
	for _, name := range slices.Sorted(maps.Keys(x.unregistered)) {
		if own := pathin.Strictly(x.Host.GetPluginDir(name), path); own || r == nil {
			r = x.unregistered[name]
			if own {
				return r
			}
		}
	}
	return r
}

// mountProblems are mounts that no record explains, or not all of them.
func (x *examination) mountProblems() (problems []Problem) {
	for target, count := range x.mounted.Targets {
		path, ok := x.mounted.Shown(target)
		if !ok || !pathin.Strictly(rootdir.PodsDir(x.Host.RootDir), path) {
			continue
		}
		if _, _, ok := x.subPathOf(path); ok {
			continue
		}
		key, isVolume := x.volumeAt(path)
		switch {
		case !isVolume:
			problems = append(problems, Problem{Kind: StrayMount, Path: path, PodUID: key.PodUID,
				Err:    errors.New("something is mounted here that is no volume"),
				Advice: "Find out who mounts here; umount " + path + " when it is not needed."})
		case count > 1 && x.volumes[key]:
			problems = append(problems, Problem{Kind: Stacked, Path: path, PodUID: key.PodUID, Volume: key.Spec,
				Err:    fmt.Errorf("%d mounts lie on top of each other", count),
				Repair: fmt.Sprintf("unmount the upper %d", count-1),
				Do:     func(ctx context.Context) error { return unstack(ctx, x.Host.Mounter, path, count-1) }})
		}
	}
	slices.SortFunc(problems, func(a, b Problem) int { return strings.Compare(a.Path, b.Path) })
	return problems
}

// volumeAt returns the volume that is mounted at a path below pods/: at its place, or, as
// those of CSI drivers, in a directory there, as its record says. Where there is no record to
// read, another problem tells of the volume.
func (x *examination) volumeAt(path string) (rootdir.Key, bool) {
	if key, ok := rootdir.KeyOfPath(x.Host.RootDir, filepath.Dir(path)); ok {
		if place, known := x.places[key]; place == path || !known {
			return key, true
		}
	}
	return rootdir.KeyOfPath(x.Host.RootDir, path)
}

// unstack unmounts the upper mounts, normally: what uses them is not torn away.
func unstack(ctx context.Context, m mount.Interface, path string, n int) error {
	for range n {
		if _, err := mount.Unmount(ctx, m, path, mount.UnmountOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func subPathsOf(key rootdir.Key) containermounts.SubPaths {
	return containermounts.SubPaths{PodUID: key.PodUID, Spec: key.Spec}
}
