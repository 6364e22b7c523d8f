package hostpath

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/sharedirs"
)

// deleter does away with the directory of a volume that [provisioner] has made.
type deleter struct {
	plugin  *plugin
	pv      *v1.PersistentVolume
	base    Base
	dir     string // the class's
	removal sharedirs.Removal
	missing atomic.Bool // nothing was there to be deleted
}

// NewDeleter implements [volume.DeletableVolumePlugin] for PersistentVolumes that
// the plugin has provisioned on this node; others are refused with a
// *[volume.InvalidSpecError] or [ErrOtherNode], and so are another reclaim policy
// than Delete, and a directory that is below no configured base any more. The
// PersistentVolume is not trusted: the marks decide which directory is deleted,
// the host's [volume.ReleaseVerifier] decides whether.
func (m maker) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	d, err := m.plugin.newDeleter(spec)
	if err != nil {
		return nil, volumeError("NewDeleter", spec.Name(), volume.NothingDone(err))
	}
	return d, nil
}

func (p *plugin) newDeleter(spec *volume.Spec) (*deleter, error) {
	source, err := p.Source(spec)
	if err != nil {
		return nil, err
	}
	dir, err := sharedirs.ProvisionedAt(spec, PluginName, BaseAnnotation)
	if err != nil {
		return nil, err
	}
	pv := spec.PersistentVolume
	if made, own := pv.Annotations[NodeAnnotation], string(p.Host.GetNodeName()); made != own || own == "" {
		return nil, otherNode(own, fmt.Sprintf("the annotation %s says %q", NodeAnnotation, made), "have podvol's controller there delete it")
	}
	owner, err := sharedirs.OwnerOf(pv)
	if err != nil {
		return nil, err
	}
	d := &deleter{plugin: p, pv: pv.DeepCopy(), dir: dir}
	var configured bool
	if d.base, configured = p.config.Provision.baseOf(dir); !configured || filepath.Clean(dir) != dir {
		return nil, volume.Invalid("metadata.annotations."+BaseAnnotation, "is %q, which is below no directory that this node provides volumes in (%v); configure it again to have the volume deleted", dir, p.config.Provision.paths())
	}
	rest, lies := pathin.Cut(dir, source.Path)
	if !lies {
		return nil, volume.Invalid("hostPath.path", "is %q, which is not below the directory %q that the volume was made in", source.Path, dir)
	}
	if err := sharedirs.CheckPath(rest); err != nil {
		return nil, volume.Invalid("hostPath.path", "does not lead to a directory that was made for a volume: %v", err)
	}
	onDelete, err := sharedirs.OnDeleteOf(pv)
	if err != nil {
		return nil, err
	}
	d.removal = sharedirs.Removal{
		Path: rest, AtLeast: onDelete, On: sharedirs.Disk, Owner: owner,
		Missing: func() { d.missing.Store(true) },
	}
	return d, nil
}

// GetPath is empty: the volume is mounted in no pod.
func (d *deleter) GetPath() string { return "" }

// GetMetrics matches [volume.ErrMetricsUnsupported] for the same reason.
func (d *deleter) GetMetrics(context.Context) (*volume.Metrics, error) {
	return nil, volumeError("GetMetrics", d.pv.Name, volume.ErrMetricsUnsupported)
}

// Found implements [reclaim.StorageFinder].
func (d *deleter) Found() bool { return !d.missing.Load() }

// Delete deletes the volume's directory, archives it, or forgets it, as onDelete of its
// class and [OnDeleteAnnotation] say, whichever keeps more.
//
//   - It touches only what podvol has made for just this volume and claim, and only if the
//     host's [volume.ReleaseVerifier] allows it and no part of it is mounted elsewhere on
//     this node. It checks both again once the directory is open.
//   - Users of its path do not count if the path is another volume's by now, by the marks.
//   - A missing directory is success. After a failure, a crash or the end of ctx another
//     call goes on.
//   - Errors are a *[volume.MissingRoleError], the verifier's, [volume.ErrInUse], a
//     *[removetree.MountError] for a mount in it, and a *[DirectoryError], in a
//     *[volume.Error].
func (d *deleter) Delete(ctx context.Context) error {
	release := &release{plugin: d.plugin, pv: d.pv, path: d.pv.Spec.HostPath.Path}
	err := release.verifyUnused(ctx)
	if err == nil || errors.Is(err, volume.ErrInUse) { // maybe by the path's new volume
		err = d.plugin.do(ctx, "delete "+d.pv.Spec.HostPath.Path, func() error { return d.remove(ctx, release) })
	}
	if err != nil {
		return volumeError("Delete", d.pv.Name, fmt.Errorf("deleting %q below %s: %w", d.removal.Path, d.dir, err))
	}
	return nil
}

func (d *deleter) remove(ctx context.Context, release *release) error {
	root, err := d.plugin.openClassDir(ctx, d.base, d.dir, false)
	if err != nil {
		return err
	}
	defer root.Close()
	if inUse := release.verifyUnused(ctx); inUse != nil {
		if left, err := sharedirs.HasLeft(ctx, root, d.removal); !errors.Is(inUse, volume.ErrInUse) || err != nil || !left {
			return inUse
		}
	}
	return sharedirs.Remove(ctx, root, d.removal)
}
