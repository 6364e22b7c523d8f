package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// ProblemKind says what is wrong below a root directory.
type ProblemKind string

// The kinds.
const (
	// ProblemUnfinished is the rest of a set-up that was begun and not
	// confirmed.
	ProblemUnfinished ProblemKind = "unfinished set-up"
	// ProblemNotMounted is a recorded mount that is gone, as after a reboot.
	ProblemNotMounted ProblemKind = "record without mount"
	// ProblemNoDirectory is a recorded volume whose directory was removed.
	ProblemNoDirectory ProblemKind = "record without directory"
	// ProblemDetached is a volume whose mount was detached lazily, and whose file
	// system may be in use.
	ProblemDetached ProblemKind = "detached volume"
	// ProblemStacked is a second mount on top of a volume's.
	ProblemStacked ProblemKind = "mounted twice"
	// ProblemNoRecord is a volume's directory, or a mount there, without a
	// record.
	ProblemNoRecord ProblemKind = "volume without record"
	// ProblemStrayMount is a mount below pods/ that is at no volume's place.
	ProblemStrayMount ProblemKind = "mount that is no volume"
	// ProblemStraySubPath is a part of a volume that is mounted for a container
	// below pods/<uid>/volume-subpaths, where the pod has no such volume.
	ProblemStraySubPath ProblemKind = "sub-path without volume"
	// ProblemStrayDevice is a mount below plugins/ that no volume's record needs.
	ProblemStrayDevice ProblemKind = "device mount without record"
	// ProblemWorkMount is a mount that a plugin made for itself, as to make a
	// directory of an export, when nothing works there any more.
	ProblemWorkMount ProblemKind = "mount of a plugin's own"
	// ProblemUnreadable is a record, or a part of the records' file, that
	// cannot be read.
	ProblemUnreadable ProblemKind = "unreadable record"
	// ProblemHelper is a mount helper of an owner that is dead.
	ProblemHelper ProblemKind = "mount helper of a dead owner"
)

// Problem is one thing that is wrong, and what can be done about it.
type Problem struct {
	Kind   ProblemKind
	Pod    types.NamespacedName
	PodUID types.UID
	// Volume is the volume's name, as far as it is known; Path where it is.
	Volume, Path string
	// PID is the helper's.
	PID int
	// Err says what is wrong.
	Err error
	// Repair says what [Repair] does about it; empty: nothing, and Advice says
	// what the node's owner can do.
	Repair, Advice string

	repair func(context.Context, *Manager) error
}

// Check looks for what is wrong below config.RootDir and changes nothing. It
// takes no lock; while another process owns the root, what that is about to do
// may look like a problem. With config.Adopt, volumes without records are
// planned to be given one. Only RootDir, Mounter, Plugins and Adopt matter of
// the configuration, but all of it must be valid.
func Check(ctx context.Context, config Config) ([]Problem, error) {
	m, err := New(config)
	if err != nil {
		return nil, err
	}
	if err := rootdir.Check(m.host.RootDir); err != nil {
		return nil, err
	}
	return m.examine(ctx)
}

// Repair owns the root directory as [Manager.Run] does, looks for what is
// wrong, repairs what can be, and calls done with each problem and the error of
// its repair. Nothing is ever removed recursively but by a plugin that tears its
// own recorded volume down.
//
// What podvol has no record of is only touched with config.Adopt: volumes are
// given a record then, and devices' mounts that no record needs are unmounted.
// Sub-paths without a volume count as podvol's own if it has a record of another
// volume of their pod. A damaged record is removed once nothing is left at its
// volume's place. Errors are those of Run.
func Repair(ctx context.Context, config Config, done func(Problem, error)) error {
	m, err := New(config)
	if err != nil {
		return err
	}
	if config.Adopt {
		if err := config.refuseKubelet(); err != nil {
			return err
		}
	}
	unlock, err := rootdir.Lock(m.host.RootDir)
	if err != nil {
		return err
	}
	problems, err := m.examine(ctx)
	if err != nil {
		unlock()
		return err
	}
	if err := m.recovery.load(); err != nil {
		unlock()
		return &RootError{RootDir: m.host.RootDir, Err: err}
	}
	err = m.repairAll(ctx, problems, done)
	return errors.Join(err, m.close(unlock))
}

func (m *Manager) repairAll(ctx context.Context, problems []Problem, done func(Problem, error)) error {
	for _, p := range problems {
		if p.repair == nil {
			done(p, nil)
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		done(p, p.repair(ctx, m))
	}
	return nil
}

// examine makes the plan: helpers first, since they may still mount, then what
// is mounted too often, then the volumes.
func (m *Manager) examine(ctx context.Context) ([]Problem, error) {
	root := m.host.RootDir
	mounted, err := rootdir.ReadMounts(root, m.host.Mounter)
	if err != nil {
		return nil, err
	}
	found, unreadable, damaged, err := rootdir.ReadRecords(root)
	if err != nil {
		return nil, err
	}
	var problems []Problem
	for _, h := range rootdir.FindHelpers(rootdir.ProcDir, root) {
		problems = append(problems, helperProblem(h))
	}
	x := m.newExamination(mounted)
	x.explain(found, unreadable, damaged)
	dirs, err := rootdir.VolumeDirs(root)
	gone := goneFrom(root, dirs, err)
	var volumes []Problem
	for _, r := range found {
		key := rootdir.KeyOf(r)
		if p, ok := recordProblem(key, actualVolume{key: key, record: r}, reasonOf(r, mounted, gone)); ok {
			volumes = append(volumes, p)
		}
	}
	for _, err := range unreadable {
		volumes = append(volumes, unreadableProblem(err))
	}
	if damaged != nil {
		volumes = append(volumes, Problem{Kind: ProblemUnreadable, Path: rootdir.RecordsPath(root), Err: errors.Join(damaged.Errs...), Advice: damaged.Advice()})
	}
	orphans := x.orphans(ctx, dirs)
	problems = append(problems, x.mountProblems()...)
	return slices.Concat(problems, volumes, orphans, x.strayMounts()), err
}

func helperProblem(h rootdir.Helper) Problem {
	return Problem{Kind: ProblemHelper, PID: h.PID, Path: h.Target,
		Err:    fmt.Errorf("%s was started by an owner of the root directory, and may mount at any time", h),
		Repair: fmt.Sprintf("kill process %d", h.PID),
		repair: func(ctx context.Context, _ *Manager) error { return h.End(ctx) }}
}

func recordProblem(key rootdir.Key, v actualVolume, reason error) (Problem, bool) {
	p := Problem{Pod: v.record.Pod, PodUID: key.PodUID, Volume: strings.Join(v.record.Volumes, ","), Path: v.record.Path, Err: reason,
		Repair: "tear it down: unmount what is mounted, remove its directory and its record",
		repair: func(ctx context.Context, m *Manager) error {
			s := m.recovery.volumeAt(key)
			if s == nil {
				return nil // gone since the plan was made
			}
			m.mu.Lock()
			s.doing = opTearDown // as it is for its pod's other volumes from now on
			m.mu.Unlock()
			return m.operator.tearDown(ctx, s)
		}}
	switch detached, ok := errors.AsType[*lazyunmount.Error](reason); {
	case ok:
		p.Kind = ProblemDetached
		if detached.InUse() {
			p.Repair, p.repair = "", nil
			p.Advice = "End the processes that use the file system or bring its server back, then repair again; after a restart of the machine it is gone."
		}
	case errors.Is(reason, ErrOutcomeUnknown):
		p.Kind = ProblemUnfinished
	case errors.Is(reason, mountrecord.ErrNotMountedAnymore):
		p.Kind = ProblemNotMounted
	case errors.Is(reason, ErrDirectoryGone):
		p.Kind = ProblemNoDirectory
	default:
		return Problem{}, false
	}
	return p, true
}

// unreadableProblem is a record that cannot be read. A damaged one can go once
// nothing is left of its volume; what a newer podvol wrote is for that one.
func unreadableProblem(err *UnreadableRecordError) Problem {
	p := Problem{Kind: ProblemUnreadable, Volume: err.Volume, Path: err.Path, Err: err,
		Advice: "If a newer podvol wrote it, use that one; else unmount what is there, remove its directory, and repair again: then the record goes."}
	key, ok := rootdir.ParseKey(err.Volume)
	if !ok || !errors.Is(err, mountrecord.ErrDamaged) {
		return p
	}
	p.PodUID, p.Volume = key.PodUID, key.Spec
	if gone, _ := rootdir.IsGone(err.Path); !gone {
		return p
	}
	p.Repair, p.Advice = "remove the record: nothing is left of its volume", ""
	p.repair = func(_ context.Context, m *Manager) error {
		gone, failure := rootdir.IsGone(err.Path)
		if failure != nil {
			return failure
		}
		if !gone {
			return err
		}
		return m.records.Remove(key)
	}
	return p
}

// orphans are volumes' directories without a record.
func (x *examination) orphans(ctx context.Context, dirs []rootdir.Key) (problems []Problem) {
	for _, key := range dirs {
		if x.volumes[key] {
			continue
		}
		row := unknownStatus(x.manager.host.RootDir, key)
		p := Problem{Kind: ProblemNoRecord, PodUID: key.PodUID, Volume: key.Spec, Path: row.Path, Err: ErrNoRecord,
			Advice: "If no other agent uses this root directory, --adopt makes records for such volumes."}
		switch {
		case x.manager.config.Adopt:
			x.planAdoption(ctx, &p, key)
		case rootdir.HasDeviceLink(x.manager.host, key):
			x.explainLink(ctx, key)
		}
		problems = append(problems, p)
	}
	return problems
}

// explainLink adds where the device is mounted that a pod's link leads to.
func (x *examination) explainLink(ctx context.Context, key rootdir.Key) {
	record, err := x.manager.recovery.rebuild(ctx, key)
	if err != nil {
		x.incomplete = true
		return
	}
	x.explainDevice(record)
}

func (x *examination) planAdoption(ctx context.Context, p *Problem, key rootdir.Key) {
	x.subPaths[subPathsOf(key)] = true
	record, err := x.manager.recovery.rebuild(ctx, key)
	if err != nil {
		x.incomplete = true
		p.Err, p.Advice = fmt.Errorf("%w; and it cannot be adopted: %w", ErrNoRecord, err), "Unmount it by hand and remove its empty directory."
		return
	}
	x.explainDevice(record)
	p.Repair, p.Advice = "make a record of it: "+describe(record), ""
	if record.Guessed {
		p.Repair += ", whose source is guessed"
	}
	p.repair = func(ctx context.Context, m *Manager) error { return m.recovery.adoptOne(ctx, key, x.mounted) }
}

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
