package nfs

import (
	"context"
	"fmt"
	"os"
	"path"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
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
	wish := sharedirs.Wish{
		Path:     m.dir,
		Owner:    sharedirs.Owner{Volume: m.options.PVName, ClaimUID: m.options.PVC.UID},
		Claim:    types.NamespacedName{Namespace: m.options.PVC.Namespace, Name: m.options.PVC.Name}.String(),
		Mode:     m.class.Mode,
		OnDelete: m.class.OnDelete,
	}
	work := func(ctx context.Context, root *os.File) error { return sharedirs.Make(ctx, root, wish) }
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
