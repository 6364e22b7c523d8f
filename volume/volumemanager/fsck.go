package volumemanager

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/fsck"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// ProblemKind names a kind of fault below a root directory.
type ProblemKind string

// The kinds.
const (
	// ProblemUnfinished is the rest of a set-up that was begun and not
	// confirmed.
	ProblemUnfinished ProblemKind = fsck.Unfinished
	// ProblemNotMounted is a recorded mount that is gone, as after a reboot.
	ProblemNotMounted ProblemKind = fsck.NotMounted
	// ProblemNoDirectory is a recorded volume whose directory was removed.
	ProblemNoDirectory ProblemKind = fsck.NoDirectory
	// ProblemDetached is a volume whose mount was detached lazily, and whose file
	// system may be in use.
	ProblemDetached ProblemKind = fsck.Detached
	// ProblemStacked is a second mount on top of a volume's.
	ProblemStacked ProblemKind = fsck.Stacked
	// ProblemNoRecord is a volume's directory, or a mount there, without a
	// record.
	ProblemNoRecord ProblemKind = fsck.NoRecord
	// ProblemStrayMount is a mount below pods/ that is at no volume's place.
	ProblemStrayMount ProblemKind = fsck.StrayMount
	// ProblemStraySubPath is a part of a volume that is mounted for a container
	// below pods/<uid>/volume-subpaths, where the pod has no such volume.
	ProblemStraySubPath ProblemKind = fsck.StraySubPath
	// ProblemStrayDevice is a mount below plugins/ that no volume's record needs.
	ProblemStrayDevice ProblemKind = fsck.StrayDevice
	// ProblemWorkMount is a mount that a plugin made for itself, as to make a
	// directory of an export, when nothing works there any more.
	ProblemWorkMount ProblemKind = fsck.WorkMount
	// ProblemUnreadable is a record, or a part of the records' file, that
	// cannot be read.
	ProblemUnreadable ProblemKind = fsck.Unreadable
	// ProblemHelper is a mount helper of an owner that is dead.
	ProblemHelper ProblemKind = fsck.Helper
)

// Problem is one fault, and its possible repair.
type Problem struct {
	Kind   ProblemKind
	Pod    types.NamespacedName
	PodUID types.UID
	// Volume is the volume's name, as far as it is known; Path where it is.
	Volume, Path string
	// PID is the helper's.
	PID int
	// Err is the fault.
	Err error
	// Repair says what [Repair] does about it; empty: nothing, and Advice says
	// what the node's owner can do.
	Repair, Advice string

	do func(context.Context) error
}

// Check looks for faults below config.RootDir and changes nothing. It takes no
// lock: another process's operation under way may look like a problem. With
// config.Adopt, the plan gives records to volumes without one. Of the
// configuration only RootDir, Mounter, Plugins and Adopt matter, but all of it
// must be valid.
func Check(ctx context.Context, config Config) ([]Problem, error) {
	m, err := New(config)
	if err != nil {
		return nil, err
	}
	if err := rootdir.Check(m.host.RootDir); err != nil {
		return nil, err
	}
	problems := problemsOf(fsck.Helpers(m.host.RootDir))
	rest, err := m.examine(ctx)
	return append(problems, rest...), err
}

// Repair owns the root directory as [Manager.Run] does, looks for faults, repairs them
// where it can, and calls done with each problem and the error of its repair. Its own
// errors are Run's.
//
//   - The mount helpers of a dead owner are ended first. What they have mounted until then
//     is looked for afterwards.
//   - Nothing is removed recursively but by a plugin that tears its own recorded volume
//     down.
//   - Only config.Adopt lets it touch what podvol has no record of: volumes get a record,
//     and devices' mounts that no record needs are unmounted.
//   - Sub-paths without a volume count as podvol's own if it has a record of another
//     volume of their pod.
//   - A damaged record is removed once its volume's place is empty.
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
	// The helpers have ended, if they can be, before the plan is made.
	if err := m.repairAll(ctx, problemsOf(fsck.Helpers(m.host.RootDir)), done); err != nil {
		unlock()
		return err
	}
	problems, err := m.examine(ctx)
	if err != nil {
		unlock()
		return err
	}
	if err := m.recovery.load(ctx); err != nil {
		unlock()
		return &RootError{RootDir: m.host.RootDir, Err: err}
	}
	err = m.repairAll(ctx, problems, done)
	return errors.Join(err, m.close(unlock))
}

func (m *Manager) repairAll(ctx context.Context, problems []Problem, done func(Problem, error)) error {
	for _, p := range problems {
		if p.do == nil {
			done(p, nil)
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		done(p, p.do(ctx))
	}
	return nil
}

func (m *Manager) examine(ctx context.Context) ([]Problem, error) {
	found, err := fsck.Examine(ctx, fsck.Config{Host: m.host, Plugins: m.plugins, All: m.config.Plugins, Adopt: m.config.Adopt, Owner: owner{m}})
	return problemsOf(found), err
}

func problemsOf(found []fsck.Problem) []Problem {
	problems := make([]Problem, len(found))
	for i, p := range found {
		problems[i] = Problem{Kind: ProblemKind(p.Kind), Pod: p.Pod, PodUID: p.PodUID, Volume: p.Volume, Path: p.Path, PID: p.PID, Err: p.Err, Repair: p.Repair, Advice: p.Advice, do: p.Do}
	}
	return problems
}

// owner is what repairs ask of the manager, which owns the root directory and does not run.
type owner struct{ m *Manager }

func (o owner) Rebuild(ctx context.Context, key rootdir.Key) (*mountrecord.Record, error) {
	return o.m.recovery.rebuilt().Record(ctx, key)
}

func (o owner) Adopt(ctx context.Context, key rootdir.Key, mounted rootdir.Mounts) error {
	return o.m.recovery.adoptOne(ctx, key, mounted)
}

func (o owner) TearDown(ctx context.Context, key rootdir.Key) error {
	s := o.m.recovery.volumeAt(key)
	if s == nil {
		return nil // gone since the plan was made
	}
	o.m.entries.Lock()
	s.doing = opTearDown // as it is for its pod's other volumes from now on
	o.m.entries.Unlock()
	return o.m.executor.tearDown(ctx, s)
}

func (o owner) RemoveRecord(key rootdir.Key) error { return o.m.records.Remove(key) }

func (o owner) Unbind(ctx context.Context, sub containermounts.SubPaths) error {
	detached, err := o.m.containers.Unbind(ctx, sub)
	if detached != nil {
		err = errors.Join(err, detached)
	}
	return errors.Join(err, o.m.podDirs.RemoveEmpty(ctx, o.m.host.RootDir, sub.PodUID, ""))
}

// sweepWork begins to unmount what plugins of a dead owner mounted for
// themselves. Nothing waits for it: a server may be dead.
func (m *Manager) sweepWork(ctx context.Context) {
	for _, p := range m.config.Plugins {
		plugin, ok := volume.AsWorkMount(p)
		if !ok {
			continue
		}
		m.life.Go(func() {
			if err := plugin.SweepWork(ctx); err != nil {
				m.log.Warn("what a plugin had mounted for itself is not all gone", "plugin", plugin.GetPluginName(), "error", err)
			}
		})
	}
}
