package nfs

import (
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/meter"
)

// PluginName is the plugin's name.
const PluginName = "kubernetes.io/nfs"

// New returns the plugin.
func New(config Config) volume.VolumePlugin {
	return &plugin{config: config, breaker: newBreaker(config.Breaker), Kind: pluginbase.Kind[v1.NFSVolumeSource]{
		Name: PluginName, Field: "nfs",
		Inline:     func(s *v1.VolumeSource) *v1.NFSVolumeSource { return s.NFS },
		Persistent: func(s *v1.PersistentVolumeSource) *v1.NFSVolumeSource { return s.NFS },
	}}
}

type plugin struct {
	pluginbase.Kind[v1.NFSVolumeSource]
	config  Config
	breaker *breaker
	meter   meter.Meter
	working keylock.Map[string] // the agent's own mounts, by name
	making  keylock.Map[string] // directories that are being made, by source
}

var (
	_ volume.PersistentVolumePlugin    = (*plugin)(nil)
	_ volume.MountOptionVolumePlugin   = (*plugin)(nil)
	_ volume.SourceDescriber           = (*plugin)(nil)
	_ volume.WorkMountPlugin           = (*plugin)(nil)
	_ volume.ProvisionableVolumePlugin = (*plugin)(nil)
	_ volume.DeletableVolumePlugin     = (*plugin)(nil)
	_ volume.SourceHealthPlugin        = (*plugin)(nil)
)

// Init implements [volume.VolumePlugin]. A configuration that cannot work is an
// error, that of a policy as [InlinePolicy.Check] says.
func (p *plugin) Init(host volume.VolumeHost) error {
	if err := errors.Join(p.config.Inline.Check(), p.config.Recycle.check(), p.config.Provision.check()); err != nil {
		return err
	}
	return p.Kind.Init(host)
}

// GetVolumeName returns "server/path" in the kubelet's form, the same for every
// spelling of the same export.
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	source, err := p.Source(spec)
	if err != nil {
		return "", err
	}
	e, err := parseExport(source)
	if err != nil {
		return "", err
	}
	e = e.normal()
	return e.server + "/" + e.path, nil
}

// DescribeSource returns "server:/path".
func (p *plugin) DescribeSource(spec *volume.Spec) string {
	source, err := p.Source(spec)
	if err != nil {
		return ""
	}
	e, err := parseExport(source)
	if err != nil {
		return source.Server + ":" + source.Path
	}
	return e.String()
}

func (p *plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany}
}

func (p *plugin) SupportsMountOption() bool { return true }

func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.Mounter(spec, pod, func(pv volume.PodVolume, source *v1.NFSVolumeSource) (volume.Mounter, error) {
		if err := pluginbase.CheckFilesystem(spec, "nfs"); err != nil {
			return nil, err
		}
		e, err := parseExport(source)
		if err != nil {
			return nil, err
		}
		m := &mounter{share: share{pv, p}, export: e, mustBeReadOnly: source.ReadOnly || pluginbase.ReadOnly(spec)}
		if spec.PersistentVolume == nil {
			m.asked(pod)
			return m, nil
		}
		return m, m.persistent(spec)
	})
}

func (p *plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{share{pv, p}}, nil
}

// ConstructVolumeSpec reads server, path and read-only from the mount table.
// Options of the network file system itself, such as vers, are not told apart
// from its defaults, whoever asked for them.
// Without a mount, only the name is known.
func (p *plugin) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	rebuilt := &v1.NFSVolumeSource{}
	result := volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{
		Name: volumeName, VolumeSource: v1.VolumeSource{NFS: rebuilt}})}
	mounts := table.Of(p.Host.GetMounter())
	entry, mounted, err := mounts.At(volumePath)
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	if !mounted || !isNFS(entry) {
		return result, nil
	}
	if e, ok := parseTableSource(entry.Source); ok {
		rebuilt.Server, rebuilt.Path, rebuilt.ReadOnly = e.server, e.path, entry.ReadOnly()
		// A mount of a part of the file system may be some other directory of
		// the server's than the source says. Options other than the usual ones
		// are those of a PersistentVolume or a pod, of which only some can be told.
		result.Complete = (entry.Root == "" || entry.Root == "/") && hasUsualOptions(entry)
	}
	return result, nil
}

// hasUsualOptions reports whether a mount has only the options that every
// mount has.
func hasUsualOptions(entry mount.Entry) bool {
	return !slices.ContainsFunc(entry.Options, func(o string) bool { return o != "rw" && o != "ro" && o != "relatime" })
}
