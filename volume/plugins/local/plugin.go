// Package local gives pods directories of the node that are declared as
// PersistentVolumes: plugin kubernetes.io/local-volume.
//
//   - A directory is bound into the pod's.
//   - A block device gets a file system if it is blank, which is mounted once on the node
//     and bound into the pods'. With volumeMode Block pods get the device itself.
//   - The caller must check that this node is the volume's (spec.nodeAffinity).
//   - A volume whose only access mode is ReadOnlyMany is bound read-only.
//   - A PersistentVolume that names its disk, like package localdiscovery's (annotation
//     podvol.io/local-volume-id), is refused while another one, or none, is at its path.
//   - One that was released from its claim keeps its data. With reclaim policy Delete it
//     can be cleaned for the next claim, where [Config] says so.
//   - A volume is given to the pod's fsGroup before it is bound, so a bound one has been
//     given to it whole. As with the kubelet, only the first pod's fsGroup counts while
//     several use the volume.
package local

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/diskmount"
	"github.com/podvol/podvol/volume/internal/hostfiles"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/validation"
	"github.com/podvol/podvol/volume/volumesource"
)

// PluginName is the plugin's name.
const PluginName = "kubernetes.io/local-volume"

// New returns the plugin.
func New(config Config) volume.VolumePlugin {
	return &plugin{config: config, Kind: pluginbase.Kind[v1.LocalVolumeSource]{
		Name: PluginName, Field: "local",
		Persistent: func(s *v1.PersistentVolumeSource) *v1.LocalVolumeSource { return s.Local },
	}}
}

type plugin struct {
	pluginbase.Kind[v1.LocalVolumeSource]
	config Config
	files  hostfiles.Own
	// owning are the volumes that are being given to a group and bound.
	owning keylock.Map[string]
	// cleaning and looking are calls that a disk may hang in, by path.
	cleaning, looking blockingcall.Group[string]
	disks             diskmount.Disks
}

var (
	_ volume.PersistentVolumePlugin  = (*plugin)(nil)
	_ volume.MountOptionVolumePlugin = (*plugin)(nil)
	_ volumesource.Describer         = (*plugin)(nil)

	_ volume.DeviceMountableVolumePlugin = (*plugin)(nil)
	_ volume.BlockVolumePlugin           = (*plugin)(nil)
)

// Init implements [volume.VolumePlugin]. A configuration that cannot work is an
// error.
func (p *plugin) Init(host volume.VolumeHost) error {
	if err := p.config.Clean.check(); err != nil {
		return err
	}
	return p.Kind.Init(host)
}

// GetVolumeName returns the PersistentVolume's name, which is unique.
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	if _, err := p.Source(spec); err != nil {
		return "", err
	}
	return spec.Name(), nil
}

// DescribeSource returns the path.
func (p *plugin) DescribeSource(spec *volume.Spec) string {
	source, err := p.Source(spec)
	if err != nil {
		return ""
	}
	return source.Path
}

func (p *plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
}

func (p *plugin) SupportsMountOption() bool { return true }

func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.Mounter(spec, pod, func(pv volume.PodVolume, source *v1.LocalVolumeSource) (volume.Mounter, error) {
		if err := pluginbase.CheckFilesystem(spec, "local"); err != nil {
			return nil, err
		}
		if err := validation.CheckAbsolutePath("local.path", source.Path); err != nil {
			return nil, err
		}
		options, err := pluginbase.Options(spec, pluginbase.ReadOnly(spec))
		if err != nil {
			return nil, err
		}
		return &mounter{Volume: diskmount.Volume{PodVolume: pv, Disks: &p.disks}, plugin: p, pod: pod, pv: spec.PersistentVolume, path: source.Path, options: options}, nil
	})
}

func (p *plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &diskmount.Volume{PodVolume: pv, Disks: &p.disks}, nil
}

// ConstructVolumeSpec finds the bound directory by the mount table. It is
// complete where the table leaves no doubt about the directory's path and the
// volume has no mount options of its own; their names are lost.
func (p *plugin) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	found, err := findBinding(p.Host.GetMounter(), volumePath)
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	if found.path == p.deviceMountPath(volumeName) {
		found.path, found.certain = found.source, false // the device, by one of its names
	}
	filesystem := v1.PersistentVolumeFilesystem
	pv := &v1.PersistentVolume{}
	pv.Name = volumeName
	pv.Spec.Local = &v1.LocalVolumeSource{Path: found.path}
	pv.Spec.VolumeMode = &filesystem
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromPersistentVolume(pv, found.readOnly), Complete: found.certain}, nil
}
