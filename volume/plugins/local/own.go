package local

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/layout"
)

// own gives the volume to the pod's fsGroup, unless another pod uses it, maybe
// with another fsGroup (Kubernetes v1.37). Call done when the volume is bound:
// until then no other pod looks whether it is used.
func (m *mounter) own(ctx context.Context, bind mount.Request, args volume.MounterArgs) (done func(), err error) {
	if args.FsGroup == nil || m.readOnly() {
		return func() {}, nil
	}
	unlock, err := m.plugin.owning.Lock(ctx, m.path)
	if err != nil {
		return nil, fmt.Errorf("local.path %q is being given to another pod's fsGroup: %w", m.path, err)
	}
	if err := m.ownLocked(ctx, bind, args); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

func (m *mounter) ownLocked(ctx context.Context, bind mount.Request, args volume.MounterArgs) error {
	shared, err := m.usedElsewhere(bind.Target)
	if err != nil {
		return err
	}
	if shared {
		m.warn(ctx, bind.Source, *args.FsGroup)
		return nil
	}
	var owner volume.HostOwnership = &m.plugin.files // of what the plugin has mounted itself
	if bind.Source == m.path {
		if owner, err = m.plugin.files.OwnerOf(m.Host); err != nil {
			return err
		}
	}
	return owner.SetOwnership(ctx, bind.Source, m.GetAttributes(), args)
}

// usedElsewhere reports whether the mount table has the volume of another pod:
// the directories of a PersistentVolume all end alike.
func (m *mounter) usedElsewhere(dir string) (bool, error) {
	mounts := table.Of(m.Host.GetMounter())
	all, err := mounts.All()
	if err != nil {
		return false, err
	}
	place := filepath.Join("/volumes", layout.EscapeQualifiedName(PluginName), filepath.Base(m.GetPath()))
	return slices.ContainsFunc(all, func(e mount.Entry) bool {
		return e.Target != dir && strings.HasSuffix(e.Target, place)
	}), nil
}

// warn tells the pod that the volume belongs to another group than it asks for.
func (m *mounter) warn(ctx context.Context, source string, gid int64) {
	events, err := volume.Role[volume.EventSink](m.Host)
	if err != nil {
		return
	}
	info, err := m.plugin.files.Of(m.Host).Stat(ctx, source)
	if err != nil {
		return // the mount will say so
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int64(stat.Gid) == gid {
		return
	}
	events.Event(m.pod, v1.EventTypeWarning, "AlreadyMountedVolume", fmt.Sprintf(
		"The requested fsGroup is %d, but the volume %s has GID %d, and another pod uses it. The volume may not be shareable.",
		gid, filepath.Base(m.GetPath()), stat.Gid))
}
