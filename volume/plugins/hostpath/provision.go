package hostpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/openat"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/sharedirs"
	"github.com/podvol/podvol/volume/validation"
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
	request := sharedirs.Request{
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
		if err := m.plugin.checkForgotten(ctx, &m.class, root, request); err != nil {
			return err
		}
		return sharedirs.Make(ctx, root, request)
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

// dirClass is what a storage class says.
type dirClass struct {
	sharedirs.Class
	base Base
	dir  string // base.Path or below it; has the bookkeeping
}

func (p *plugin) parseClass(parameters map[string]string) (dirClass, error) {
	const mode = "mode"
	given, err := sharedirs.Parameters(parameters, "path", sharedirs.ParamSubDir, mode, sharedirs.ParamOnDelete)
	if err != nil {
		return dirClass{}, err
	}
	config := p.config.Provision
	class := dirClass{dir: filepath.Clean(config.Bases[0].Path)}
	if path := given["path"]; path != "" {
		if err := validation.CheckAbsolutePath("parameters.path", path); err != nil {
			return dirClass{}, err
		}
		class.dir = filepath.Clean(path)
	}
	var ok bool
	if class.base, ok = config.baseOf(class.dir); !ok {
		return dirClass{}, volume.Invalid("parameters.path", "is %q, which is neither a directory that this node provides volumes in nor below one; there are %v", class.dir, config.paths())
	}
	if sharedirs.InBook(class.dir) {
		return dirClass{}, volume.Invalid("parameters.path", "is %q; the name \".podvol\" is kept for podvol's own bookkeeping", class.dir)
	}
	class.Class, err = sharedirs.ParseClass(given, mode, cmp.Or(config.Mode, defaultMode), config.OnDelete)
	return class, err
}

func (c ProvisionConfig) paths() (paths []string) {
	for _, b := range c.Bases {
		paths = append(paths, b.Path)
	}
	return paths
}

// provisionable are the access modes that a directory of one node has.
func provisionable() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteOncePod}
}

// checkClaim refuses a claim that asks for what a directory of a node cannot do.
func checkClaim(options volume.VolumeOptions) error {
	if len(options.MountOptions) > 0 {
		return volume.Invalid("mountOptions", "of the storage class mean nothing for a directory that is not mounted; drop them")
	}
	return sharedirs.CheckClaim(options, sharedirs.Disk, provisionable())
}

// noBase says that the directory in which volumes are to be made or deleted cannot
// be used.
func noBase(path string, err error) error {
	next := "it must be a directory of this node"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		next = "look whether its disk is mounted on this node, or create it"
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		next = "it must be a directory; below a base links are not followed"
	}
	what := fmt.Sprintf("the directory %s for provisioned volumes cannot be opened: %v", path, err)
	return &volume.Failure{Cause: ErrNoBase, Subject: path, What: what, Next: next, Err: err}
}

// openClassDir opens the directory that a class's volumes lie in. The base's own
// path is the administrator's; below it no links are followed, and a volume of
// another class is refused. Missing bases are made if create says so too.
func (p *plugin) openClassDir(ctx context.Context, base Base, dir string, create bool) (*os.File, error) {
	path := filepath.Clean(base.Path)
	at, err := os.OpenFile(path, unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) && base.Make && create {
		if err := p.files.MakeDir(ctx, path, 0o700); err != nil {
			return nil, fmt.Errorf("making the directory %s for provisioned volumes: %w", path, err)
		}
		at, err = os.OpenFile(path, unix.O_DIRECTORY, 0)
	}
	if err != nil {
		return nil, noBase(path, reason(err))
	}
	rest, _ := pathin.Cut(path, dir)
	for rest != "" {
		if err := sharedirs.CheckOutside(ctx, at, rest, sharedirs.Disk); err != nil {
			at.Close()
			return nil, err
		}
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		next, err := openat.Dir(at, name)
		at.Close()
		if err != nil {
			return nil, noBase(filepath.Join(at.Name(), name), reason(err))
		}
		at = next
	}
	return at, nil
}

// reason is an error without the path that says the same again.
func reason(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// otherNode says that a volume is to be made, deleted or emptied on another node
// than this one.
func otherNode(own, reason, next string) error {
	return &volume.Failure{
		Cause: ErrOtherNode, Subject: own, Next: next,
		What: fmt.Sprintf("hostPath volumes of other nodes cannot be reached from node %q: %s", own, reason),
	}
}

// hostnameFor returns this node's label kubernetes.io/hostname, if it is this
// node that a volume is to be made on.
func (p *plugin) hostnameFor(selected *v1.Node, allowed []v1.TopologySelectorTerm) (string, error) {
	own := string(p.Host.GetNodeName())
	refuse := func(reason, next string) (string, error) { return "", otherNode(own, reason, next) }
	labels := map[string]string{}
	switch {
	case own == "":
		return refuse("this one has no name", "give the volume host one (Host.NodeName)")
	case selected != nil && selected.Name != own:
		return refuse(fmt.Sprintf("node %q was selected for the claim's pod", selected.Name), "run podvol's controller there, or let the pod run here")
	case selected != nil:
		maps.Copy(labels, selected.Labels)
	}
	if labels[v1.LabelHostname] == "" {
		labels[v1.LabelHostname] = own
		if p.config.Provision.Hostname != "" {
			labels[v1.LabelHostname] = p.config.Provision.Hostname
		}
	}
	if !allows(allowed, labels) {
		if selected == nil {
			return refuse("allowedTopologies of the storage class do not allow it as far as is known without a pod",
				fmt.Sprintf("use volumeBindingMode WaitForFirstConsumer, or allow %s %q", v1.LabelHostname, labels[v1.LabelHostname]))
		}
		return refuse("allowedTopologies of the storage class do not allow it, and it was selected for the claim's pod", "let the pod run elsewhere")
	}
	return labels[v1.LabelHostname], nil
}

// allows reports whether a node with these labels is in one of the topologies,
// all of whose expressions must hold; no topologies allow every node.
func allows(terms []v1.TopologySelectorTerm, labels map[string]string) bool {
	return len(terms) == 0 || slices.ContainsFunc(terms, func(t v1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchLabelExpressions, func(e v1.TopologySelectorLabelRequirement) bool {
			return !slices.Contains(e.Values, labels[e.Key])
		})
	})
}

func affinityTo(hostname string) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{hostname}}},
	}}}}
}

// checkHere refuses a volume that lies on another node. Its node affinity says
// so as far as the node's labels are known.
func (p *plugin) checkHere(pv *v1.PersistentVolume, labels map[string]string) error {
	own := string(p.Host.GetNodeName())
	here, err := claimbinding.MatchesNode(pv, labels, own)
	if err == nil && !here {
		err = otherNode(own, "the PersistentVolume's nodeAffinity is for others", "have podvol's controller on its node do it")
	}
	return err
}
