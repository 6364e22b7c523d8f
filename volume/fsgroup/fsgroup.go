// Package fsgroup gives a volume's files to the pod's fsGroup, by the kubelet's rules.
// Plugins with volumes that are Managed ([volume.Attributes]) call it in SetUpAt.
package fsgroup

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/ownership"
	"github.com/podvol/podvol/util/tracing"
	"github.com/podvol/podvol/volume"
)

// Doing is the text of [volume.Progress] while files are given to a group.
const Doing = "setting the owner of files"

// Set gives the tree at dir to args.FsGroup. The SetUpAt of a plugin
// whose volumes are attributes.Managed calls it once the volume is mounted. A
// plugin that mounts a device once for the node calls it for each pod's mount,
// not for the device's own mount. Set does nothing without a group, or
// if the volume is read-only or not managed.
//
// The rules are the kubelet's:
//
//   - Every file gets the group. Owner and group may read and write it.
//     Directories pass the group on (setgid).
//   - With args.FSGroupChangePolicy OnRootMismatch it changes files only if dir
//     itself is not right yet.
//   - It does not follow links. It leaves mounts beneath dir alone.
//   - It does not write to files that are right already.
//   - It changes dir last. So it may be interrupted and called again.
//   - It reports the number of files that it has visited to args.Progress.
//
// The errors:
//
//   - A group that is no group id is an *[volume.InvalidSpecError].
//   - Other failures are an *ownership.Error with its advice, an *fs.PathError,
//     or the cause of ctx's end.
//
// It checks ctx between system calls. A system call may hang if a server does not
// answer; for such file systems use an [Setter].
func Set(ctx context.Context, dir string, attributes volume.Attributes, args volume.MounterArgs) error {
	if args.FsGroup == nil || !attributes.Managed || attributes.ReadOnly {
		return nil
	}
	gid := *args.FsGroup
	if gid < 0 || gid >= 1<<32-1 {
		return volume.NothingDone(volume.Invalid("fsGroup", "%d is not a group id", gid))
	}
	o := ownership.Options{
		OnRootMismatch: args.FSGroupChangePolicy != nil && *args.FSGroupChangePolicy == v1.FSGroupChangeOnRootMismatch,
	}
	if report := args.Progress; report != nil {
		o.Progress = func(done int64) { report(volume.Progress{Doing: Doing, Done: done}) }
	}
	return ownership.Set(ctx, dir, ownership.Group{ID: uint32(gid)}, o)
}

// Setter is [Set] for file systems whose server may not answer. The
// wait ends with the context. At most one walk through a directory is under way.
// The zero value is ready. A plugin has one. It must not be copied after first
// use. It is safe for concurrent use.
type Setter struct {
	walks blockingcall.Group[string]
}

// Set is [Set], but it returns when ctx ends. The error is a
// *blockingcall.AbandonedError if a system call has not returned by then.
// args.Progress is not called after Set has returned.
func (o *Setter) Set(ctx context.Context, dir string, attributes volume.Attributes, args volume.MounterArgs) error {
	if args.FsGroup == nil {
		return nil
	}
	report, stop := untilStopped(args.Progress)
	defer stop()
	args.Progress = report
	return tracing.Step(ctx, "fsGroup", func(ctx context.Context) error {
		return o.walks.Do(ctx, dir, func() error { return Set(ctx, dir, attributes, args) })
	})
}

// untilStopped returns report in a form that does nothing once stop has returned.
func untilStopped(report func(volume.Progress)) (gated func(volume.Progress), stop func()) {
	if report == nil {
		return nil, func() {}
	}
	var mu sync.Mutex
	stopped := false
	gated = func(p volume.Progress) {
		mu.Lock()
		defer mu.Unlock()
		if !stopped {
			report(p)
		}
	}
	return gated, func() {
		mu.Lock()
		defer mu.Unlock()
		stopped = true
	}
}
