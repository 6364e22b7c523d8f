package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
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

func forgotten(path string, f sharedirs.Former) error {
	return &volume.Failure{
		Cause: ErrForgotten, Subject: path,
		What: fmt.Sprintf("the claim %s had a volume before: %s was made for %s, of which there is no record any more; it is kept, and the claim gets no new volume beside it", f.Claim, path, f.Owner),
		Next: "to use its data again, make a PersistentVolume with this hostPath.path and a claimRef to the claim; if it is not needed, delete it or move it away",
	}
}

// formersOf returns the directories that were made for a claim in a class's directory,
// which is open, before this process made any: those it knows.
func (p *plugin) formersOf(ctx context.Context, root *os.File, dir, claim string) ([]sharedirs.Former, error) {
	if found, ok := p.formers.Load(dir); ok {
		return found.(map[string][]sharedirs.Former)[claim], nil
	}
	found, err := sharedirs.Formers(ctx, root)
	if err != nil {
		return nil, err
	}
	if found != nil { // else the bookkeeping of a disk may come yet
		p.formers.Store(dir, found)
	}
	return found[claim], nil
}

// checkForgotten refuses a claim whose former volume is forgotten.
func (p *plugin) checkForgotten(ctx context.Context, class *dirClass, root *os.File, w sharedirs.Request) error {
	own, records := class.base.Own, p.config.Provision.Records
	if !own && records == "" || p.config.Provision.Volumes == nil {
		return nil
	}
	before, err := p.formersOf(ctx, root, class.dir, w.Claim)
	if err != nil {
		return volume.NothingDone(err)
	}
	for _, f := range before {
		if f.Owner == w.Owner {
			return nil // it is to be found again
		}
	}
	if !own {
		before = slices.DeleteFunc(slices.Clone(before), func(f sharedirs.Former) bool { return f.Records != records })
	}
	if len(before) == 0 {
		return nil
	}
	onRecord, err := p.config.Provision.Volumes(ctx)
	if err != nil {
		return volume.NothingDone(fmt.Errorf("look for PersistentVolume %q, which was made for an earlier claim %s: %w", before[0].Owner.Volume, w.Claim, err))
	}
	for _, f := range before {
		if slices.ContainsFunc(onRecord, func(pv *v1.PersistentVolume) bool { return pv.Name == f.Owner.Volume }) {
			continue
		}
		if remains, err := f.Remains(ctx, root); err != nil || remains {
			if err == nil {
				err = forgotten(filepath.Join(class.dir, f.Path), f)
			}
			return volume.NothingDone(err)
		}
	}
	return nil
}

// made is where a volume was provisioned.
type made struct {
	dir   string // the class's, which has the bookkeeping
	path  string // the volume's, below that
	owner VolumeOwner
	node  string
}

// madeOf returns where a PersistentVolume says that it was provisioned; ok is false
// for those that were not.
func madeOf(pv *v1.PersistentVolume) (m made, ok bool) {
	if pv == nil || pv.Spec.HostPath == nil || !sharedirs.IsOf(pv, PluginName) {
		return made{}, false
	}
	m = made{dir: pv.Annotations[BaseAnnotation], owner: VolumeOwner{Volume: pv.Name}, node: pv.Annotations[NodeAnnotation]}
	if pv.Spec.ClaimRef != nil {
		m.owner.ClaimUID = pv.Spec.ClaimRef.UID
	}
	m.path, ok = pathin.Cut(m.dir, pv.Spec.HostPath.Path)
	return m, ok && filepath.IsAbs(m.dir)
}

// checkBook refuses a place whose bookkeeping is not there: most likely its disk is
// not mounted.
func (m made) checkBook(ctx context.Context, files volume.HostFiles) error {
	book := sharedirs.BookOf(m.dir)
	_, err := files.Stat(ctx, book)
	if errors.Is(err, fs.ErrNotExist) {
		return volume.NothingDone(&DirectoryError{Cause: ErrNoBook, Other: m.dir, Path: m.path, Owner: m.owner, On: sharedirs.Disk})
	}
	if err != nil {
		return volume.NothingDone(fmt.Errorf("look for the disk of %s: %w", m.dir, unanswered(book, err)))
	}
	return nil
}

// checkThere refuses a volume whose directory is not there. Another in its place
// would be empty.
func (m made) checkThere(ctx context.Context, files volume.HostFiles) error {
	path := filepath.Join(m.dir, m.path)
	if _, err := files.Stat(ctx, path); !errors.Is(err, fs.ErrNotExist) {
		return nil // it is there, or the next look fails
	}
	if err := m.checkBook(ctx, files); err != nil {
		return err
	}
	return volume.NothingDone(&DirectoryError{Cause: ErrLost, Path: path, Owner: m.owner, On: sharedirs.Disk})
}

// checkMounted refuses to make the first volume in a class's directory while a
// recorded one below the same base is missing: its disk may not be mounted, and
// would hide the new one later.
func (p *plugin) checkMounted(ctx context.Context, class *dirClass) error {
	volumes := p.config.Provision.Volumes
	if volumes == nil {
		return nil
	}
	_, err := p.files.Stat(ctx, sharedirs.BookOf(class.dir))
	if !errors.Is(err, fs.ErrNotExist) {
		return nil // it is there, or the next open fails
	}
	onRecord, err := volumes(ctx)
	if err != nil {
		return volume.NothingDone(fmt.Errorf("look for PersistentVolumes that were made below %s before: %w", class.base.Path, err))
	}
	for _, pv := range onRecord {
		m, ok := madeOf(pv)
		if _, here := pathin.Cut(filepath.Clean(class.base.Path), m.dir); !ok || !here || m.node != string(p.Host.GetNodeName()) {
			continue
		}
		if err := m.checkBook(ctx, &p.files); err != nil {
			return err
		}
	}
	return nil
}
