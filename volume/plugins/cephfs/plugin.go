// Package cephfs mounts the file systems of Ceph clusters: plugin kubernetes.io/cephfs.
//
//   - The kernel's client mounts, so that the node needs the kernel's module ceph and no program.
//     There is no fallback to ceph-fuse, which Kubernetes tried first where it was installed.
//   - The key goes to the kernel by a system call. It is in no argument list, no file, no mount
//     table and no error.
//   - Names of monitors are looked up by the node, for ten seconds at most, each time a volume is
//     mounted.
//   - A file of the node with a key (secretFile) must be in [Config].KeyDir. Inline volumes have
//     their key in a secret, unless [Config].InlineKeyFiles allows them the files: in Kubernetes a
//     pod could name any file of the node, and so use the node's own key.
//   - The key is the secret's entry "key", or its only one. Kubernetes takes any.
//   - A volume that a dead cluster keeps from being unmounted is forced after a minute, and
//     detached after two.
package cephfs

import (
	"context"
	"net"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/ceph"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/meter"
	"github.com/podvol/podvol/volume/volumesource"
)

// PluginName is the plugin's name.
const PluginName = "kubernetes.io/cephfs"

// Config configures the plugin. Its zero value is what most nodes need.
type Config struct {
	// KeyDir is the directory of the node's files with keys; empty: /etc/ceph.
	KeyDir string
	// InlineKeyFiles lets the pods of this node use the keys of these files in inline volumes,
	// and so all that the keys' users may do.
	InlineKeyFiles bool
	// Resolver looks up monitors; nil: [net.DefaultResolver].
	Resolver Resolver
}

// Resolver looks up names; [net.Resolver] is one. It is safe for concurrent use.
type Resolver = ceph.Resolver

// New returns the plugin.
func New(config Config) volume.VolumePlugin {
	if config.Resolver == nil {
		config.Resolver = net.DefaultResolver
	}
	return &plugin{config: config, Kind: pluginbase.Kind[source]{
		Name: PluginName, Field: "cephfs", Inline: fromInline, Persistent: fromPersistent,
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

// GetVolumeName returns the monitors and the path, "10.0.0.1:6789,10.0.0.2:6789:/path".
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	s, err := p.checked(spec)
	if err != nil {
		return "", err
	}
	return s.describe(), nil
}

// DescribeSource returns the same.
func (p *plugin) DescribeSource(spec *volume.Spec) string {
	s, err := p.checked(spec)
	if err != nil {
		return ""
	}
	return s.describe()
}

func (p *plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany}
}

func (p *plugin) SupportsMountOption() bool { return true }

func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.Mounter(spec, pod, func(pv volume.PodVolume, _ *source) (volume.Mounter, error) {
		if err := pluginbase.CheckFilesystem(spec, "cephfs"); err != nil {
			return nil, err
		}
		s, err := p.checked(spec)
		if err != nil {
			return nil, err
		}
		return &mounter{share: share{pv, p}, source: s, namespace: pod.Namespace}, nil
	})
}

func (p *plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{share{pv, p}}, nil
}

// ConstructVolumeSpec reads monitors, path and read-only from the mount table. It is never
// complete: the user's key is not to be seen.
func (p *plugin) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	rebuilt := &v1.CephFSVolumeSource{}
	result := volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{
		Name: volumeName, VolumeSource: v1.VolumeSource{CephFS: rebuilt}})}
	mounts := table.Of(p.Host.GetMounter())
	entry, mounted, err := mounts.At(volumePath)
	if err != nil || !mounted || entry.FSType != fsType {
		return result, err
	}
	if addresses, path, ok := splitSource(entry.Source); ok {
		for _, a := range addresses {
			rebuilt.Monitors = append(rebuilt.Monitors, a.String())
		}
		rebuilt.Path, rebuilt.ReadOnly = path, entry.ReadOnly()
	}
	return result, nil
}
