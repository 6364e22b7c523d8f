package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/localdisk"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/recyclerpod"
	"github.com/podvol/podvol/volume/validation"
	"github.com/podvol/podvol/volume/volumesource"
)

var (
	_ volume.DeletableVolumePlugin = (*plugin)(nil)
	_ volumesource.Placer          = (*plugin)(nil)
)

// stillMounted says that a released volume is still mounted on this node, or its
// device mapped.
func stillMounted(source, target string) error {
	return &volume.Failure{
		Cause: volume.ErrInUse, Subject: target,
		What: fmt.Sprintf("%s is still mounted at %s", source, target),
		Next: "it is cleaned once that is unmounted",
	}
}

// deleter cleans one released volume.
type deleter struct {
	plugin *plugin
	pv     *v1.PersistentVolume // a copy
	path   string
}

// NewDeleter implements [volume.DeletableVolumePlugin]. It refuses, with a
// *[volume.InvalidSpecError], unless [Config] says that volumes are cleaned, and
// whatever does not say by which disk it is known, on which node
// (annotations podvol.io/local-volume-id and podvol.io/local-volume-node, which package localdiscovery
// writes), or from which claim it was released.
func (p *plugin) NewDeleter(spec *volume.Spec) (volume.Deleter, error) {
	d, err := p.newDeleter(spec)
	if err != nil {
		return nil, &volume.Error{Op: "NewDeleter", Plugin: PluginName, Volume: spec.Name(), Err: err}
	}
	return d, nil
}

func (p *plugin) newDeleter(spec *volume.Spec) (*deleter, error) {
	source, err := p.Source(spec)
	if err != nil {
		return nil, err
	}
	pv, node := spec.PersistentVolume, string(p.Host.GetNodeName())
	switch {
	case pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete:
		return nil, volume.Invalid("persistentVolumeReclaimPolicy", "is %q, not %q, so the data is kept", pv.Spec.PersistentVolumeReclaimPolicy, v1.PersistentVolumeReclaimDelete)
	case p.config.Clean.Action == CleanNever:
		return nil, volume.Invalid("persistentVolumeReclaimPolicy", "is %q, but local volumes keep their data here: set the reclaim policy to %s and, when the data is not needed, empty the volume and delete the PersistentVolume; or have the plugin clean released volumes (local.Config.Clean)",
			v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRetain)
	case localdisk.RecordedID(pv) == "":
		return nil, volume.Invalid("metadata.annotations", "have no disk (%s), so the disk at %s cannot be checked; its data is kept", localdisk.VolumeID, source.Path)
	case node == "" || pv.Annotations[localdisk.Node] != node:
		return nil, volume.Invalid("metadata.annotations."+localdisk.Node, "is %q, and this node is %q; a volume is cleaned on its own node", pv.Annotations[localdisk.Node], node)
	case recyclerpod.ReleaseID(pv) == "":
		return nil, volume.Invalid("claimRef", "the UIDs of the PersistentVolume and of the claim that has left it are needed")
	case pluginbase.ReadOnly(spec):
		return nil, volume.Invalid("accessModes", "offer the volume for reading only, so no claim has written what is in it; use reclaim policy %s", v1.PersistentVolumeReclaimRetain)
	}
	if err := validation.CheckAbsolutePath("local.path", source.Path); err != nil {
		return nil, err
	}
	return &deleter{plugin: p, pv: pv.DeepCopy(), path: filepath.Clean(source.Path)}, nil
}

// GetPath is empty: the volume is mounted in no pod.
func (d *deleter) GetPath() string { return "" }

// GetMetrics matches [volume.ErrMetricsUnsupported] for the same reason.
func (d *deleter) GetMetrics(context.Context) (*volume.Metrics, error) {
	return nil, d.failed("GetMetrics", volume.ErrMetricsUnsupported)
}

func (d *deleter) failed(op string, err error) error {
	if err == nil {
		return nil
	}
	return &volume.Error{Op: op, Plugin: PluginName, Volume: d.pv.Name, Err: err}
}

// Delete empties the file system or wipes the device, as [CleanConfig] says, so that the
// disk can be offered anew once the PersistentVolume is gone. It returns nil only after it
// has found nothing left and that is on the disk.
//
//   - Before, and all the while, the host's [volume.ReleaseVerifier] must allow it, the disk
//     at the path must be the volume's own, and nothing else on this node may have it
//     mounted.
//   - It works from an open directory or device, never follows a link or goes into a mount,
//     and looks at everything before it removes anything: mounts below the volume are
//     refused then. A directory lost+found of ext4 stays, emptied.
//   - After a failure, a crash or the end of ctx another call goes on.
//   - The error is a *[volume.Error] with a *[volume.MissingRoleError], the verifier's, a
//     *[reclaim.DryRunError], an *[reclaim.IncompleteError] that says how far it came, a
//     [volume.ErrInUse], the refusal of another disk, or the file system's or device's.
func (d *deleter) Delete(ctx context.Context) error {
	releases, err := pluginbase.ReleaseVerifier(d.plugin.Host)
	if err != nil {
		return d.failed("Delete", err)
	}
	c := &cleaning{deleter: d, releases: releases, table: table.Of(d.plugin.Host.GetMounter())}
	if _, err := volume.Role[volume.HostFiles](d.plugin.Host); err == nil {
		return d.failed("Delete", volume.NothingDone(errForeignFiles))
	}
	if err := c.verify(ctx); err != nil {
		return d.failed("Delete", err)
	}
	return d.failed("Delete", d.plugin.cleaning.Do(ctx, d.path, func() error { return c.clean(ctx) }))
}

var errForeignFiles = errors.New("the host's files are reached by a role (volume.HostFiles), so that this process cannot tell which disk is at a path: give that role the method CheckDisk (volume.HostDisks) to mount the volume, and clean it on its host")

// cleaning is one call of Delete.
type cleaning struct {
	*deleter
	releases volume.ReleaseVerifier
	table    mount.Table
}

func (c *cleaning) verify(ctx context.Context) error {
	return volume.NothingDone(c.releases.VerifyReleased(ctx, c.pv.DeepCopy()))
}

// clean may block.
func (c *cleaning) clean(ctx context.Context) error {
	if err := c.mayClean(); err != nil {
		return volume.NothingDone(err)
	}
	if c.pv.Spec.VolumeMode != nil && *c.pv.Spec.VolumeMode == v1.PersistentVolumeBlock {
		return c.cleanDevice(ctx)
	}
	dir, e, err := localdisk.OpenFileSystem(c.table, c.pv, c.plugin.config.System)
	if errors.Is(err, unix.ENOTDIR) {
		return c.cleanDevice(ctx)
	}
	if err != nil {
		return volume.NothingDone(err)
	}
	defer dir.Close()
	return c.cleanFiles(ctx, dir, e)
}

// mayClean refuses a path that is not where the node's administrator has volumes
// cleaned. Its last element may be a link to a device, which the link's maker has
// offered; a file system must be mounted at the very path.
func (c *cleaning) mayClean() error {
	parent, err := filepath.EvalSymlinks(filepath.Dir(c.path))
	if err != nil {
		return err
	}
	at := filepath.Join(parent, filepath.Base(c.path))
	allowed := c.plugin.config.Clean.Below
	for _, dir := range allowed {
		if real, err := filepath.EvalSymlinks(dir); err == nil && pathin.Strictly(real, at) {
			return nil
		}
	}
	return volume.Invalid("local.path", "%q is not strictly below a directory in which this node cleans volumes (%v); use reclaim policy %s, or have its administrator allow it (local.Config.Clean.Below)",
		at, allowed, v1.PersistentVolumeReclaimRetain)
}

// SharesData reports whether two volumes have a directory in common, by their
// paths. Volumes that are known to be on two nodes, or on two disks, have not. A
// refused path shares nothing, unless cleaned it is the other's, lies in it or
// around it: then the error is its refusal.
func (p *plugin) SharesData(a, b *volume.Spec) (bool, error) {
	pathA, errA := p.pathOf(a)
	pathB, errB := p.pathOf(b)
	if err := cmp.Or(errA, errB); err != nil {
		if p.mayOverlap(a, b) {
			return false, err
		}
		return false, nil
	}
	if differ(a, b, localdisk.Node) || hostsDiffer(a.PersistentVolume, b.PersistentVolume) {
		return false, nil
	}
	if pathA == pathB {
		return !differ(a, b, localdisk.VolumeID), nil
	}
	return pathin.Overlap(pathA, pathB), nil
}

func (p *plugin) mayOverlap(a, b *volume.Spec) bool {
	first, err := p.Source(a)
	if err != nil {
		return true
	}
	second, err := p.Source(b)
	if err != nil {
		return true
	}
	return pathin.Overlap(filepath.Clean("/"+first.Path), filepath.Clean("/"+second.Path))
}

// SourcePlace implements [volumesource.Placer].
func (p *plugin) SourcePlace(spec *volume.Spec) (on, path string, err error) {
	path, err = p.pathOf(spec)
	return "", path, err
}

func (p *plugin) pathOf(spec *volume.Spec) (string, error) {
	source, err := p.Source(spec)
	if err != nil {
		return "", err
	}
	if err := validation.CheckAbsolutePath("local.path", source.Path); err != nil {
		return "", err
	}
	return filepath.Clean(source.Path), nil
}

// differ reports whether both volumes have an annotation, and not the same.
func differ(a, b *volume.Spec, annotation string) bool {
	valueA, valueB := a.PersistentVolume.Annotations[annotation], b.PersistentVolume.Annotations[annotation]
	return valueA != "" && valueB != "" && valueA != valueB
}

// hostsDiffer reports whether two volumes are pinned to hosts of which none has
// both. Anything that is not plainly that counts as the same.
func hostsDiffer(a, b *v1.PersistentVolume) bool {
	hostsA, hostsB := hostsOf(a), hostsOf(b)
	return len(hostsA) > 0 && len(hostsB) > 0 && !slices.ContainsFunc(hostsA, func(h string) bool { return slices.Contains(hostsB, h) })
}

// hostsOf returns the hosts of a volume whose node affinity is one list of hosts.
func hostsOf(pv *v1.PersistentVolume) []string {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil || len(pv.Spec.NodeAffinity.Required.NodeSelectorTerms) != 1 {
		return nil
	}
	term := pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0]
	for _, e := range term.MatchExpressions {
		if e.Key == v1.LabelHostname && e.Operator == v1.NodeSelectorOpIn {
			return e.Values
		}
	}
	return nil
}
