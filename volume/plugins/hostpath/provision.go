package hostpath

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/sharedirs"
)

// Annotations of the PersistentVolumes that the plugin provisions.
const (
	// BaseAnnotation is the class's directory, below which the volume's was made.
	// Without it the volume is not deleted.
	BaseAnnotation = "provisioned.podvol.io/base"
	// NodeAnnotation is the name of the node that made it.
	NodeAnnotation = "provisioned.podvol.io/node"
	// OnDeleteAnnotation is the class's onDelete. Deletion obeys it where it keeps
	// more than the mark below the base, so that a volume's data can be saved by
	// changing it to "archive" or "retain", but never the reverse.
	OnDeleteAnnotation = sharedirs.OnDeleteAnnotation
)

// maker has the capabilities of a plugin that makes and deletes volumes.
type maker struct{ plugin *plugin }

// provisioner makes a directory for one claim.
type provisioner struct {
	plugin  *plugin
	options volume.VolumeOptions
	class   dirClass
	// dir is the directory's path below the class's.
	dir string
}

// NewProvisioner implements [volume.ProvisionableVolumePlugin]; the package
// comment has the parameters. Others, wrong values, a claim that asks for what a
// directory cannot do, and one of a namespace that may not use the base are a
// *[volume.InvalidSpecError].
func (m maker) NewProvisioner(options volume.VolumeOptions) (volume.Provisioner, error) {
	made, err := m.plugin.newProvisioner(options)
	if err != nil {
		return nil, volumeError("NewProvisioner", options.PVName, err)
	}
	return made, nil
}

func (p *plugin) newProvisioner(options volume.VolumeOptions) (*provisioner, error) {
	if err := checkClaim(options); err != nil {
		return nil, err
	}
	class, err := p.parseClass(options.Parameters)
	if err != nil {
		return nil, err
	}
	if !class.base.allows(options.PVC.Namespace) {
		return nil, volume.Invalid("metadata.namespace", "is %q, whose claims get no volumes below %q on this node; use another storage class", options.PVC.Namespace, class.base.Path)
	}
	dir, err := class.DirFor(options)
	if err != nil {
		return nil, err
	}
	return &provisioner{plugin: p, options: options, class: class, dir: dir}, nil
}

// Provision makes the claim's directory, or finds the one it has made before.
// SelectedNode must be this node, and this node in allowedTopologies; else the
// error matches [ErrOtherNode]. Others match [ErrNoBase] or [ErrForgotten], or are a
// *[DirectoryError], and a *[blockingcall.AbandonedError] that wraps the cause of ctx's
// end, all in a *[volume.Error]. Whatever they are, it may be repeated.
func (m *provisioner) Provision(ctx context.Context, selectedNode *v1.Node, allowedTopologies []v1.TopologySelectorTerm) (*v1.PersistentVolume, error) {
	hostname, err := m.plugin.hostnameFor(selectedNode, allowedTopologies)
	if err != nil {
		return nil, volumeError("Provision", m.options.PVName, volume.NothingDone(err))
	}
	wish := sharedirs.Wish{
		Path:     m.dir,
		Owner:    sharedirs.Owner{Volume: m.options.PVName, ClaimUID: m.options.PVC.UID},
		Claim:    types.NamespacedName{Namespace: m.options.PVC.Namespace, Name: m.options.PVC.Name}.String(),
		Records:  m.plugin.config.Provision.Records,
		Mode:     m.class.Mode,
		OnDelete: m.class.OnDelete,
		On:       sharedirs.Disk,
	}
	err = m.plugin.do(ctx, "make "+m.class.dir, func() error {
		if err := m.plugin.checkMounted(ctx, &m.class); err != nil {
			return err
		}
		root, err := m.plugin.openClassDir(ctx, m.class.base, m.class.dir, true)
		if err != nil {
			return err
		}
		defer root.Close()
		if err := m.plugin.checkForgotten(ctx, &m.class, root, wish); err != nil {
			return err
		}
		return sharedirs.Make(ctx, root, wish)
	})
	if err != nil {
		return nil, volumeError("Provision", m.options.PVName, fmt.Errorf("making %q below %s: %w", m.dir, m.class.dir, err))
	}
	return m.persistentVolume(hostname), nil
}

// do makes one call for a key at a time, and waits no longer than ctx.
func (p *plugin) do(ctx context.Context, key string, f func() error) error {
	err := p.work.Do(ctx, key, f)
	if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok && !abandoned.Started {
		return volume.NothingDone(err)
	}
	return err
}

func volumeError(op, pv string, err error) error {
	return &volume.Error{Op: op, Plugin: PluginName, Volume: pv, Err: err}
}

// persistentVolume is the volume as Kubernetes' controller stores it.
func (m *provisioner) persistentVolume(hostname string) *v1.PersistentVolume {
	pv := sharedirs.NewPersistentVolume(m.options, PluginName, BaseAnnotation, m.class.dir, m.class.OnDelete)
	pv.Annotations[NodeAnnotation] = string(m.plugin.Host.GetNodeName())
	pv.Spec.NodeAffinity = affinityTo(hostname)
	pv.Spec.HostPath = &v1.HostPathVolumeSource{Path: filepath.Join(m.class.dir, m.dir), Type: new(v1.HostPathDirectory)}
	return pv
}
