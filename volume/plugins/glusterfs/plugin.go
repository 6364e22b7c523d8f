package glusterfs

import (
	"cmp"
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/meter"
	"github.com/podvol/podvol/volume/volumesource"
)

// PluginName is the plugin's name.
const PluginName = "kubernetes.io/glusterfs"

// Config is how the plugin behaves on a node. Its zero value is for most nodes.
type Config struct {
	// ForceAfter is how long a normal unmount may take before the client's connection to
	// the kernel is cut, which loses data that was not yet written. LazyAfter is how long
	// after its beginning the mount is detached. 0 means one minute and two, as for nfs;
	// less than 0 means never.
	ForceAfter, LazyAfter time.Duration
	// TrustPodNamespaces allows inline volumes, and PersistentVolumes without an
	// endpointsNamespace. Whoever may make Services or Endpoints, and pods, in any namespace
	// can become root on the node then: see the package comment.
	TrustPodNamespaces bool
}

// New returns the plugin.
func New(config Config) volume.VolumePlugin {
	return &plugin{config: config, Kind: pluginbase.Kind[source]{
		Name: PluginName, Field: "glusterfs", Inline: inlineSource, Persistent: persistentSource,
	}}
}

type plugin struct {
	pluginbase.Kind[source]
	config Config
	meter  meter.Meter
}

var (
	_ volume.PersistentVolumePlugin  = (*plugin)(nil)
	_ volume.MountOptionVolumePlugin = (*plugin)(nil)
	_ volumesource.Describer         = (*plugin)(nil)
)

// GetVolumeName returns "endpoints:path", as Kubernetes did.
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	s, err := p.Source(spec)
	if err != nil {
		return "", err
	}
	return s.endpoints + ":" + s.path, nil
}

// DescribeSource returns "endpoints:path".
func (p *plugin) DescribeSource(spec *volume.Spec) string {
	name, _ := p.GetVolumeName(spec)
	return name
}

func (p *plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany}
}

func (p *plugin) SupportsMountOption() bool { return true }

func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.Mounter(spec, pod, func(pv volume.PodVolume, s *source) (volume.Mounter, error) {
		if err := pluginbase.CheckFilesystem(spec, "glusterfs"); err != nil {
			return nil, err
		}
		m := &mounter{client: client{pv, p}, source: *s, readOnly: s.readOnly || pluginbase.ReadOnly(spec)}
		m.source.namespace = cmp.Or(s.namespace, pod.Namespace)
		if err := m.check(); err != nil {
			return nil, err
		}
		if s.namespace == "" && !p.config.TrustPodNamespaces {
			return nil, untrusted(spec)
		}
		var err error
		m.options, err = pluginbase.Options(spec, m.readOnly)
		return m, err
	})
}

func (p *plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{client{pv, p}}, nil
}

// ConstructVolumeSpec reads path and read-only from the mount table, which does not have
// the name of the Endpoints object.
func (p *plugin) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	rebuilt := &v1.GlusterfsVolumeSource{}
	result := volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{
		Name: volumeName, VolumeSource: v1.VolumeSource{Glusterfs: rebuilt}})}
	mounts := table.Of(p.Host.GetMounter())
	entry, mounted, err := mounts.At(volumePath)
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	if mounted && isGluster(entry) {
		_, rebuilt.Path = splitSource(entry.Source)
		rebuilt.ReadOnly = entry.ReadOnly()
	}
	return result, nil
}

// ladder is how volumes are unmounted.
func (p *plugin) ladder() mount.UnmountOptions {
	return mount.UnmountOptions{
		ForceAfter: max(0, cmp.Or(p.config.ForceAfter, time.Minute)),
		LazyAfter:  max(0, cmp.Or(p.config.LazyAfter, 2*time.Minute)),
	}
}
