package nfs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/internal/recycler"
	"github.com/podvol/podvol/volume/internal/sharedirs"
)

// Annotations of the PersistentVolumes that the plugin provisions.
const (
	// ShareAnnotation is the path of the share on the server, below which the
	// volume's directory was made. Without it the volume is not deleted.
	ShareAnnotation = "provisioned.podvol.io/share"
	// OnDeleteAnnotation is the class's onDelete. Deletion obeys it where it keeps
	// more than the mark on the share, so that a volume's data can be saved by
	// changing it to "archive" or "retain", but never the reverse.
	OnDeleteAnnotation = sharedirs.OnDeleteAnnotation
)

// provisioner makes a directory of a share for one claim.
type provisioner struct {
	plugin  *plugin
	options volume.VolumeOptions
	class   shareClass
	// dir is the directory's path below the share, source the share with it.
	dir    string
	source export
	mount  []string // options
}

// NewProvisioner implements [volume.ProvisionableVolumePlugin]; the package
// comment has the parameters. Others, wrong values, and a claim that asks for
// what NFS cannot do are a *[volume.InvalidSpecError].
func (p *plugin) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	made, err := p.newProvisioner(options)
	if err != nil {
		return nil, volumeError("NewProvisioner", options.PVName, err)
	}
	return made, nil
}

func (p *plugin) newProvisioner(options volume.VolumeOptions) (*provisioner, error) {
	if err := sharedirs.CheckClaim(options, sharedirs.Share, p.GetAccessModes()); err != nil {
		return nil, err
	}
	class, err := p.parseClass(options.Parameters)
	if err != nil {
		return nil, err
	}
	dir, err := class.DirFor(options)
	if err != nil {
		return nil, err
	}
	mount, err := workOptions(options.MountOptions)
	if err != nil {
		return nil, err
	}
	made := &provisioner{plugin: p, options: options, class: class, dir: dir, mount: mount}
	made.source, err = parseExport(&v1.NFSVolumeSource{Server: class.share.server, Path: path.Join(class.share.path, dir)})
	if err != nil {
		return nil, err
	}
	return made, nil
}

// Provision makes the claim's directory on the share, or finds the one it has
// made before. The node does not matter; topologies become the volume's node
// affinity. A node that they do not allow is refused.
//
// Errors are the mount's, a *[ShareError] and a *[volume.InvalidSpecError], all
// in a *[volume.Error]. It may be repeated after any of them.
func (m *provisioner) Provision(ctx context.Context, selectedNode *v1.Node, allowedTopologies []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	pv := m.persistentVolume(affinityOf(allowedTopologies))
	if err := checkNode(pv, selectedNode); err != nil {
		return nil, m.error(err)
	}
	request := sharedirs.Request{
		Path:     m.dir,
		Owner:    sharedirs.Owner{Volume: m.options.PVName, ClaimUID: m.options.PVC.UID},
		Claim:    types.NamespacedName{Namespace: m.options.PVC.Namespace, Name: m.options.PVC.Name}.String(),
		Mode:     m.class.Mode,
		OnDelete: m.class.OnDelete,
	}
	work := func(ctx context.Context, root *os.File) error { return sharedirs.Make(ctx, root, request) }
	if err := m.plugin.withExport(ctx, m.class.share, m.mount, workName("provision", m.class.share.String(), m.mount), work); err != nil {
		return nil, m.error(fmt.Errorf("making %s: %w", m.source, err))
	}
	return pv, nil
}

func (m *provisioner) error(err error) error {
	return volumeError("Provision", m.options.PVName, err)
}

func volumeError(op, pv string, err error) error {
	return &volume.Error{Op: op, Plugin: PluginName, Volume: pv, Err: err}
}

// persistentVolume is the volume as Kubernetes' controller stores it.
func (m *provisioner) persistentVolume(affinity *v1.VolumeNodeAffinity) *v1.PersistentVolume {
	pv := sharedirs.NewPersistentVolume(m.options, PluginName, ShareAnnotation, m.class.share.path, m.class.OnDelete)
	pv.Spec.MountOptions = slices.Clone(m.options.MountOptions)
	pv.Spec.NodeAffinity = affinity
	pv.Spec.NFS = &v1.NFSVolumeSource{Server: m.source.server, Path: m.source.path}
	return pv
}

// affinityOf lets a volume be used on the nodes of a class's topologies only:
// one of the terms must match, with all of its labels, as
// storage.k8s.io/v1's StorageClass.allowedTopologies says. No terms allow
// every node.
func affinityOf(terms []v1.TopologySelectorTerm) *v1.VolumeNodeAffinity {
	var selector v1.NodeSelector
	for _, t := range terms {
		var term v1.NodeSelectorTerm
		for _, e := range t.MatchLabelExpressions {
			term.MatchExpressions = append(term.MatchExpressions,
				v1.NodeSelectorRequirement{Key: e.Key, Operator: v1.NodeSelectorOpIn, Values: slices.Clone(e.Values)})
		}
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, term)
	}
	if len(selector.NodeSelectorTerms) == 0 {
		return nil
	}
	return &v1.VolumeNodeAffinity{Required: &selector}
}

// checkNode refuses a node that could not use the volume.
func checkNode(pv *v1.PersistentVolume, node *v1.Node) error {
	if node == nil {
		return nil
	}
	fits, err := claimbinding.MatchesNode(pv, node.Labels, node.Name)
	if err == nil && !fits {
		err = volume.Invalid("allowedTopologies", "do not allow the node %q that was selected for the claim's pod", node.Name)
	}
	return err
}

// ProvisionConfig has what storage classes leave open.
type ProvisionConfig struct {
	// MountPermissions are the mode of a volume's directory where the class has
	// none, in Unix' bits (0o2770): read, write and search, setgid and sticky; the
	// owner must have all three. 0 means 0755, as csi-driver-nfs's directories have
	// in the end. It is safe, since only root can write, or with root_squash the
	// user that root is mapped to; pods that run as others need a class with 0777,
	// or better 2770 and the group of the share as a supplemental group.
	MountPermissions uint32
	// OnDelete is what becomes of a volume's directory where the class does not
	// say it: "delete", "archive" or "retain". Empty means "delete", as with
	// csi-driver-nfs.
	OnDelete string
}

const defaultPermissions = 0o755

func (c ProvisionConfig) check() error {
	if err := sharedirs.CheckMode("Provision.MountPermissions", cmp.Or(c.MountPermissions, defaultPermissions)); err != nil {
		return err
	}
	_, err := sharedirs.ParseOnDelete("Provision.OnDelete", c.OnDelete)
	return err
}

// shareClass is what a storage class says.
type shareClass struct {
	sharedirs.Class
	share export
}

func (p *plugin) parseClass(parameters map[string]string) (shareClass, error) {
	const permissions = "mountPermissions"
	given, err := sharedirs.Parameters(parameters, "server", "share", sharedirs.ParamSubDir, permissions, sharedirs.ParamOnDelete)
	if err != nil {
		return shareClass{}, err
	}
	share, err := parseShare(given["server"], given["share"])
	if err != nil {
		return shareClass{}, err
	}
	if low := strings.ToLower(permissions); strings.Trim(given[low], "0") == "" { // as with csi-driver-nfs, 0 is the default
		delete(given, low)
	}
	config := p.config.Provision
	class, err := sharedirs.ParseClass(given, permissions, cmp.Or(config.MountPermissions, defaultPermissions), config.OnDelete)
	return shareClass{Class: class, share: share}, err
}

func parseShare(server, share string) (export, error) {
	if server == "" {
		return export{}, volume.Invalid("parameters.server", "is required: the name or address of the NFS server")
	}
	if share == "" {
		return export{}, volume.Invalid("parameters.share", "is required: the path that the server exports")
	}
	e, err := parseExport(&v1.NFSVolumeSource{Server: server, Path: share})
	if err != nil {
		return export{}, fmt.Errorf("server and share of the storage class: %w", err)
	}
	// One spelling only, since paths below it are found by it again.
	e.path = e.normal().path
	if e.path != "/" && sharedirs.CheckRelative(e.path[1:]) != nil {
		return export{}, volume.Invalid("parameters.share", "is %q; it must be a path without \".\" or empty elements", share)
	}
	return e, nil
}

// workOptions are those with which the agent mounts a share to change it: not
// read-only, whatever its pods get, and without trust in what it saw before,
// since other nodes make and delete directories too (nfs(5), "DATA AND METADATA
// COHERENCE"). The last of contradicting options counts.
func workOptions(class []string) ([]string, error) {
	if err := mount.CheckOptions(class); err != nil {
		return nil, volume.NothingDone(fmt.Errorf("mountOptions of the storage class: %w", err))
	}
	options := slices.DeleteFunc(slices.Clone(class), func(o string) bool { return o == "ro" })
	return lastOptions(options, "lookupcache=none", "actimeo=0"), nil
}

// lastOptions puts options at the end, where nothing outdoes them.
func lastOptions(options []string, last ...string) []string {
	kept := slices.DeleteFunc(slices.Clone(options), func(o string) bool { return slices.Contains(last, o) })
	return append(kept, last...)
}

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
	releases, err := pluginbase.ReleaseVerifier(d.plugin.Host)
	if err != nil {
		return volumeError("Delete", d.pv.Name, err)
	}
	release := &recycling{plugin: d.plugin, export: d.source, releases: releases, Recycling: recycler.Recycling{PV: d.pv}}
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
