// Package fsck looks below a root directory for faults: records and mounts that
// do not fit each other, directories and mounts without a record, helpers of dead
// owners. It changes nothing; each [Problem] knows its repair.
package fsck

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
	"k8s.io/apimachinery/pkg/types"
)

// The kinds of problems; package volumemanager says what they are.
const (
	Unfinished   = "unfinished set-up"
	NotMounted   = "record without mount"
	NoDirectory  = "record without directory"
	Detached     = "detached volume"
	Stacked      = "mounted twice"
	NoRecord     = "volume without record"
	StrayMount   = "mount that is no volume"
	StraySubPath = "sub-path without volume"
	StrayDevice  = "device mount without record"
	WorkMount    = "mount of a plugin's own"
	Unreadable   = "unreadable record"
	Helper       = "mount helper of a dead owner"
)

// Problem is one fault; volumemanager.Problem has the same fields.
type Problem struct {
	Kind           string
	Pod            types.NamespacedName
	PodUID         types.UID
	Volume, Path   string
	PID            int
	Err            error
	Repair, Advice string
	// Do repairs it, for the owner of the root directory; nil: nothing can.
	Do func(context.Context) error
}

// Owner is what repairs ask of the owner of the root directory, and the plan of them asks to
// rebuild records, which touches nothing.
type Owner interface {
	// Rebuild makes a record from a volume's directory and the mount table; Adopt
	// stores it.
	Rebuild(context.Context, rootdir.Key) (*mountrecord.Record, error)
	Adopt(context.Context, rootdir.Key, rootdir.Mounts) error
	// TearDown tears a recorded volume down; one that is gone is done.
	TearDown(context.Context, rootdir.Key) error
	// RemoveRecord removes a record that cannot be read.
	RemoveRecord(rootdir.Key) error
	// Unbind unmounts the sub-paths of a volume, and removes the directories that
	// are empty then.
	Unbind(context.Context, containermounts.SubPaths) error
}

// Config says where to look.
type Config struct {
	Host    *volume.Host
	Plugins *volume.VolumePluginMgr
	// All are the plugins of Plugins.
	All []volume.VolumePlugin
	// Adopt plans to make records for volumes that have none, and to unmount devices that
	// no record needs.
	Adopt bool
	Owner Owner
}

// Helpers are the mount helpers of a dead owner. Each may mount until it has ended, and
// that mount is in no plan that was made before.
func Helpers(rootDir string) (problems []Problem) {
	for _, h := range rootdir.FindHelpers(rootdir.ProcDir, rootDir) {
		problems = append(problems, helperProblem(h))
	}
	return problems
}

// Examine makes the plan: surplus mounts, then the volumes. It is complete if no helper runs:
// see [Helpers].
func Examine(ctx context.Context, config Config) ([]Problem, error) {
	root := config.Host.RootDir
	mounted, err := rootdir.ReadMounts(root, config.Host.Mounter)
	if err != nil {
		return nil, err
	}
	found, unreadable, damaged, err := rootdir.ReadRecords(root)
	if err != nil {
		return nil, err
	}
	x := newExamination(config, mounted)
	x.explain(found, unreadable, damaged)
	dirs, err := rootdir.VolumeDirs(root)
	gone := rootdir.GoneFrom(root, dirs, err)
	var volumes []Problem
	for _, r := range found {
		if p, ok := x.recordProblem(r, rootdir.ReasonOf(r, mounted, gone)); ok {
			volumes = append(volumes, p)
		}
	}
	for _, err := range unreadable {
		volumes = append(volumes, x.unreadableProblem(err))
	}
	if damaged != nil {
		volumes = append(volumes, Problem{Kind: Unreadable, Path: rootdir.RecordsPath(root), Err: errors.Join(damaged.Errs...), Advice: damaged.Advice()})
	}
	orphans := x.orphans(ctx, dirs)
	return slices.Concat(x.mountProblems(), volumes, orphans, x.strayMounts(), x.doubts(ctx)), err
}

// doubts are devices that may be staged, and of which nothing says which volume they are.
func (x *examination) doubts(ctx context.Context) (problems []Problem) {
	for _, p := range x.All {
		devices, err := volume.FindStaged(ctx, p)
		if err != nil {
			problems = append(problems, Problem{Kind: Unreadable, Path: x.Host.GetPluginDir(p.GetPluginName()), Err: err, Advice: "Mend the directory: until then all of the plugin's volumes count as in use."})
		}
		for _, d := range devices {
			if d.Spec == nil {
				problems = append(problems, Problem{Kind: Unreadable, Volume: filepath.Base(filepath.Dir(d.Path)), Path: d.Path, Err: d.Err,
					Advice: "The volume that it may be counts as in use, and is not detached. If nothing is mounted there, remove its directory by hand."})
			}
		}
	}
	return problems
}

func helperProblem(h rootdir.Helper) Problem {
	return Problem{Kind: Helper, PID: h.PID, Path: h.Target,
		Err:    fmt.Errorf("%s was started by an owner of the root directory, and may mount at any time", h),
		Repair: fmt.Sprintf("kill process %d", h.PID),
		Do:     h.End}
}

func (x *examination) recordProblem(r *mountrecord.Record, reason error) (Problem, bool) {
	p := Problem{Pod: r.Pod, PodUID: r.PodUID, Volume: strings.Join(r.Volumes, ","), Path: r.Path, Err: reason,
		Repair: "tear it down: unmount it, remove its directory and its record",
		Do:     func(ctx context.Context) error { return x.Owner.TearDown(ctx, rootdir.KeyOf(r)) }}
	switch detached, ok := errors.AsType[*lazyunmount.Error](reason); {
	case ok:
		p.Kind = Detached
		if detached.InUse() {
			p.Repair, p.Do = "", nil
			p.Advice = "End the processes that use the file system or bring its server back, then repair again; after a restart of the machine it is gone."
		}
	case errors.Is(reason, rootdir.ErrOutcomeUnknown):
		p.Kind = Unfinished
	case errors.Is(reason, mountrecord.ErrNotMountedAnymore):
		p.Kind = NotMounted
	case errors.Is(reason, rootdir.ErrDirectoryGone):
		p.Kind = NoDirectory
	default:
		return Problem{}, false
	}
	return p, true
}

// unreadableProblem is a record that cannot be read. A damaged one can go once
// nothing is left of its volume; what a newer podvol wrote is for that one.
func (x *examination) unreadableProblem(err *rootdir.UnreadableRecordError) Problem {
	p := Problem{Kind: Unreadable, Volume: err.Volume, Path: err.Path, Err: err,
		Advice: "If a newer podvol wrote it, use that one; else unmount it, remove its directory, and repair again: then the record goes."}
	key, ok := rootdir.ParseKey(err.Volume)
	if !ok || !errors.Is(err, mountrecord.ErrDamaged) {
		return p
	}
	p.PodUID, p.Volume = key.PodUID, key.Spec
	if gone, _ := rootdir.IsGone(err.Path); !gone {
		return p
	}
	p.Repair, p.Advice = "remove the record: nothing is left of its volume", ""
	p.Do = func(context.Context) error {
		gone, failure := rootdir.IsGone(err.Path)
		if failure != nil {
			return failure
		}
		if !gone {
			return err
		}
		return x.Owner.RemoveRecord(key)
	}
	return p
}

// orphans are volumes' directories without a record.
func (x *examination) orphans(ctx context.Context, dirs []rootdir.Key) (problems []Problem) {
	for _, key := range dirs {
		if x.volumes[key] {
			continue
		}
		p := Problem{Kind: NoRecord, PodUID: key.PodUID, Volume: key.Spec, Path: rootdir.VolumePlace(x.Host.RootDir, key), Err: rootdir.ErrNoRecord,
			Advice: "If no other agent uses this root directory, --adopt makes records for such volumes."}
		switch {
		case x.Adopt:
			x.planAdoption(ctx, &p, key)
		case rootdir.HasDeviceLink(x.Host, key):
			x.explainLink(ctx, key)
		}
		problems = append(problems, p)
	}
	return problems
}

// explainLink adds where the device is mounted that a pod's link leads to.
func (x *examination) explainLink(ctx context.Context, key rootdir.Key) {
	record, err := x.Owner.Rebuild(ctx, key)
	if err != nil {
		x.incomplete = true
		return
	}
	x.explainDevice(record)
}

func (x *examination) planAdoption(ctx context.Context, p *Problem, key rootdir.Key) {
	x.subPaths[subPathsOf(key)] = true
	record, err := x.Owner.Rebuild(ctx, key)
	if err != nil {
		x.incomplete = true
		p.Err, p.Advice = fmt.Errorf("%w; and it cannot be adopted: %w", rootdir.ErrNoRecord, err), "Unmount it by hand and remove its empty directory."
		if _, err := x.Plugins.FindPluginByName(key.Plugin); err != nil { // nothing is wrong with the volume
			p.Advice = "Leave it mounted, and give podvol its plugin: that of CSI drivers by --csi-driver or --csi-registry."
		}
		return
	}
	x.explainDevice(record)
	x.places[key] = record.Path
	p.Repair, p.Advice = "make a record of it: "+record.Plugin+" "+record.Source, ""
	if record.Guessed {
		p.Repair += ", whose source is guessed"
	}
	p.Do = func(ctx context.Context) error { return x.Owner.Adopt(ctx, key, x.mounted) }
}

// worksAt returns the plugin that mounts at a path for itself.
func (x *examination) worksAt(path string) (volume.WorkMountPlugin, bool) {
	for _, p := range x.All {
		if plugin, ok := volume.AsWorkMount(p); ok && pathin.Strictly(plugin.GetWorkDir(), path) {
			return plugin, true
		}
	}
	return nil, false
}

// leftWork is what a plugin mounted for itself, and left.
func leftWork(plugin volume.WorkMountPlugin, path string) Problem {
	return Problem{Kind: WorkMount, Path: path,
		Err:    errors.New("plugin " + plugin.GetPluginName() + " had mounted this for work of its own, and did not come to unmount it"),
		Repair: "unmount it and remove its empty directory",
		Do:     plugin.SweepWork}
}
