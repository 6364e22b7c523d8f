package volume

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/flight"
	"github.com/podvol/podvol/util/ownership"
)

// SettingOwner is what [Progress] says of a walk that gives files to a group.
const SettingOwner = "setting the owner of files"

// SetOwnership gives the tree at dir to args.FsGroup, for the SetUpAt of a
// plugin whose volumes are attributes.Managed. Without a group, and for volumes
// that are read-only or not managed, it does nothing. The rules are the
// kubelet's: every file gets the group, owner and group may read and write it,
// directories pass the group on (setgid); with args.FSGroupChangePolicy
// OnRootMismatch, all that only where dir itself is not so yet. Links are not
// followed and mounts beneath dir are left alone. What is right already is not
// written to, and dir itself changes last, so that it may be interrupted and
// called again. args.Progress is told how many files were looked at.
//
// Call it when the volume is mounted. A plugin that mounts a device once for
// the node calls it for each pod's mount: the device's own has no group to be
// given to.
//
// A group that is no group id is an *[InvalidSpecError]; what else fails is an
// *ownership.Error with its advice, an *fs.PathError, or the cause of ctx's end.
// ctx is looked at between system calls; where one may hang, since a server
// does not answer, use an [Ownership].
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

// Ownership is [SetOwnership] for file systems whose server may not answer:
// the wait ends with the context, and at most one walk through a directory is
// outstanding. The zero value is ready, one for a plugin; it must not be copied
// after first use. Safe for concurrent use.
type Ownership struct {
	walks flight.Group[string]
}

// Set is [SetOwnership], but returns when ctx ends, with a
// *flight.AbandonedError where a system call has not returned by then.
// args.Progress is not called once it has returned.
func (o *Ownership) Set(ctx context.Context, dir string, attributes Attributes, args MounterArgs) error {
	if args.FsGroup == nil {
		return nil
	}
	report, stop := untilStopped(args.Progress)
	defer stop()
	args.Progress = report
	return o.walks.Do(ctx, dir, func() error { return SetOwnership(ctx, dir, attributes, args) })
}

// untilStopped returns report, which does nothing any more once stop has
// returned.
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
