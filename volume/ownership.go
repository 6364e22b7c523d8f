package volume

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/ownership"
)

// SettingOwner is the text of [Progress] while files are given to a group.
const SettingOwner = "setting the owner of files"

// SetOwnership gives the tree at dir to args.FsGroup. The SetUpAt of a plugin
// whose volumes are attributes.Managed calls it once the volume is mounted. A
// plugin that mounts a device once for the node calls it for each pod's mount,
// not for the device's own mount. SetOwnership does nothing without a group, or
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
//   - A group that is no group id is an *[InvalidSpecError].
//   - Other failures are an *ownership.Error with its advice, an *fs.PathError,
//     or the cause of ctx's end.
//
// It checks ctx between system calls. A system call may hang if a server does not
// answer; for such file systems use an [Ownership].
func SetOwnership(ctx context.Context, dir string, attributes Attributes, args MounterArgs) error {
	if args.FsGroup == nil || !attributes.Managed || attributes.ReadOnly {
		return nil
	}
	gid := *args.FsGroup
	if gid < 0 || gid >= 1<<32-1 {
		return NothingDone(Invalid("fsGroup", "%d is not a group id", gid))
	}
	o := ownership.Options{
		OnRootMismatch: args.FSGroupChangePolicy != nil && *args.FSGroupChangePolicy == v1.FSGroupChangeOnRootMismatch,
	}
	if report := args.Progress; report != nil {
		o.Progress = func(done int64) { report(Progress{Doing: SettingOwner, Done: done}) }
	}
	return ownership.Set(ctx, dir, ownership.Group{ID: uint32(gid)}, o)
}

// Ownership is [SetOwnership] for file systems whose server may not answer. The
// wait ends with the context. At most one walk through a directory is under way.
// The zero value is ready. A plugin has one. It must not be copied after first
// use. It is safe for concurrent use.
type Ownership struct {
	walks blockingcall.Group[string]
}

// Set is [SetOwnership], but it returns when ctx ends. The error is a
// *blockingcall.AbandonedError if a system call has not returned by then.
// args.Progress is not called after Set has returned.
func (o *Ownership) Set(ctx context.Context, dir string, attributes Attributes, args MounterArgs) error {
	if args.FsGroup == nil {
		return nil
	}
	report, stop := untilStopped(args.Progress)
	defer stop()
	args.Progress = report
	return o.walks.Do(ctx, dir, func() error { return SetOwnership(ctx, dir, attributes, args) })
}

// untilStopped returns report in a form that does nothing once stop has returned.
func untilStopped(report func(Progress)) (gated func(Progress), stop func()) {
	if report == nil {
		return nil, func() {}
	}
	var mu sync.Mutex
	stopped := false
	gated = func(p Progress) {
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
