package nfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/internal/sharedirs"
)

// deleter does away with the directory of a volume that [provisioner] has made.
type deleter struct {
	plugin   *plugin
	pv       *v1.PersistentVolume
	share    export
	dir      string // below the share
	source   export // the share with it
	owner    sharedirs.Owner
	onDelete sharedirs.OnDelete
	mount    []string    // options
	missing  atomic.Bool // nothing was there to be deleted
}

// NewDeleter implements [volume.DeletableVolumePlugin] for PersistentVolumes that
// the plugin has provisioned; others are refused with a
// *[volume.InvalidSpecError], and so is another reclaim policy than Delete. The
// PersistentVolume is not trusted: the marks on the share decide which directory
// is deleted, the host's [volume.ReleaseVerifier] decides whether.
func (p *plugin) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	d, err := p.newDeleter(spec)
	if err != nil {
		return nil, volumeError("NewDeleter", spec.Name(), err)
	}
	return d, nil
}

func (p *plugin) newDeleter(spec *volume.Spec) (*deleter, error) {
	source, err := p.Source(spec)
	if err != nil {
		return nil, err
	}
	sharePath, err := sharedirs.ProvisionedAt(spec, PluginName, ShareAnnotation)
	if err != nil {
		return nil, err
	}
	pv := spec.PersistentVolume
	owner, err := sharedirs.OwnerOf(pv)
	if err != nil {
		return nil, err
	}
	d := &deleter{plugin: p, pv: pv.DeepCopy(), owner: owner}
	if d.share, err = parseShare(source.Server, sharePath); err != nil {
		return nil, err
	}
	dir, lies := pathin.Cut(d.share.path, source.Path)
	if !lies {
		return nil, volume.Invalid("nfs.path", "is %q, which is not below the share %q that the volume was made on", source.Path, d.share.path)
	}
	if err := sharedirs.CheckPath(dir); err != nil {
		return nil, volume.Invalid("nfs.path", "does not lead to a directory that was made for a volume: %v", err)
	}
	d.dir = dir
	d.source = export{server: d.share.server, path: source.Path}
	if d.onDelete, err = sharedirs.OnDeleteOf(pv); err != nil {
		return nil, err
	}
	given, err := pluginbase.Options(spec, false)
	if err != nil {
		return nil, err
	}
	d.mount, err = workOptions(given)
	return d, err
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
//     host's [volume.ReleaseVerifier] allows it and no pod of this node has it mounted. It
//     checks both again once the share is mounted.
//   - Users of its path do not count if the path is another volume's by now, by the marks.
//   - A missing directory is success. After a failure, a crash or the end of ctx another
//     call goes on.
//   - Errors are a *[volume.MissingRoleError], the verifier's, [volume.ErrInUse], the
//     mount's, and a *[ShareError], in a *[volume.Error].
func (d *deleter) Delete(ctx context.Context) error {
	releases, err := d.plugin.releaseVerifier()
	if err != nil {
		return volumeError("Delete", d.pv.Name, err)
	}
	release := &recycling{plugin: d.plugin, pv: d.pv, export: d.source, releases: releases}
	inUse := release.verifyUnused(ctx)
	if inUse != nil && !errors.Is(inUse, volume.ErrInUse) {
		return volumeError("Delete", d.pv.Name, inUse)
	}
	removal := sharedirs.Removal{Path: d.dir, Owner: d.owner, AtLeast: d.onDelete, Missing: func() { d.missing.Store(true) }}
	var begun atomic.Bool
	remove := func(ctx context.Context, root *os.File) error {
		if inUse := release.verifyUnused(ctx); inUse != nil {
			if left, err := sharedirs.HasLeft(ctx, root, removal); !errors.Is(inUse, volume.ErrInUse) || err != nil || !left {
				return inUse
			}
		}
		begun.Store(true)
		return sharedirs.Remove(ctx, root, removal)
	}
	name := workName("delete", d.share.String(), append(slices.Clone(d.mount), d.owner.Volume))
	err = d.plugin.withExport(ctx, d.share, d.mount, name, remove)
	if err != nil && inUse != nil && !begun.Load() { // which is why, whether or not the share can be mounted
		return volumeError("Delete", d.pv.Name, inUse)
	}
	if err != nil {
		return volumeError("Delete", d.pv.Name, fmt.Errorf("deleting %q of %s: %w", d.dir, d.share, err))
	}
	return nil
}

// workName is the same for the same work: what a crash left of it is found
// again. Work on one share with the same options is done one after the other,
// except for deletions, which may take long.
func workName(work, share string, options []string) string {
	h := sha256.Sum256([]byte(strings.Join(append([]string{share}, options...), "\x00")))
	return work + "-" + hex.EncodeToString(h[:16])
}
