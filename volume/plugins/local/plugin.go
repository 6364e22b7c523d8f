// Package local gives pods directories of the node that are declared as
// PersistentVolumes: plugin kubernetes.io/local-volume. The directory is bound
// into the pod's. Whether this node is the volume's node (spec.nodeAffinity)
// is for the caller to see to.
package local

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/hostfiles"
	"github.com/podvol/podvol/volume/internal/pvoptions"
)

// PluginName is the plugin's name.
const PluginName = "kubernetes.io/local-volume"

// New returns the plugin.
func New() volume.VolumePlugin { return &plugin{} }

type plugin struct {
	host  volume.VolumeHost
	files hostfiles.Own
	meter volume.Meter
}

var (
	_ volume.PersistentVolumePlugin  = (*plugin)(nil)
	_ volume.MountOptionVolumePlugin = (*plugin)(nil)
	_ volume.SourceDescriber         = (*plugin)(nil)
)

func (p *plugin) Init(host volume.VolumeHost) error {
	p.host = host
	return nil
}

func (p *plugin) GetPluginName() string { return PluginName }

func (p *plugin) CanSupport(spec *volume.Spec) bool {
	_, ok := sourceOf(spec)
	return ok
}

// GetVolumeName returns the PersistentVolume's name, which is unique.
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	if _, ok := sourceOf(spec); !ok {
		return "", errNotLocal()
	}
	return spec.Name(), nil
}

// DescribeSource returns the path.
func (p *plugin) DescribeSource(spec *volume.Spec) string {
	source, ok := sourceOf(spec)
	if !ok {
		return ""
	}
	return source.Path
}

func (p *plugin) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
}

func (p *plugin) SupportsMountOption() bool { return true }

func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	pv, err := volume.NewPodVolume(p.host, PluginName, spec, pod)
	if err != nil {
		return nil, pv.Error("NewMounter", err)
	}
	m, err := p.newMounter(pv, spec)
	if err != nil {
		return nil, pv.Error("NewMounter", err)
	}
	return m, nil
}

func (p *plugin) newMounter(pv volume.PodVolume, spec *volume.Spec) (*mounter, error) {
	source, ok := sourceOf(spec)
	if !ok {
		return nil, errNotLocal()
	}
	if err := pvoptions.CheckFilesystem(spec, "local"); err != nil {
		return nil, err
	}
	if err := volume.CheckAbsolutePath("local.path", source.Path); err != nil {
		return nil, err
	}
	readOnly := pvoptions.ReadOnly(spec)
	options, err := pvoptions.Options(spec, readOnly)
	if err != nil {
		return nil, err
	}
	return &mounter{bound: bound{pv, p}, path: source.Path, options: options}, nil
}

func (p *plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{bound{pv, p}}, nil
}

// ConstructVolumeSpec finds the bound directory by the mount table. It is
// complete where the table leaves no doubt about the directory's path.
func (p *plugin) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	path, certain, err := boundPath(p.host.GetMounter(), volumePath)
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	filesystem := v1.PersistentVolumeFilesystem
	pv := &v1.PersistentVolume{}
	pv.Name = volumeName
	pv.Spec.Local = &v1.LocalVolumeSource{Path: path}
	pv.Spec.VolumeMode = &filesystem
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromPersistentVolume(pv, false), Complete: certain}, nil
}

func sourceOf(spec *volume.Spec) (*v1.LocalVolumeSource, bool) {
	if spec == nil || spec.PersistentVolume == nil {
		return nil, false
	}
	return spec.PersistentVolume.Spec.Local, spec.PersistentVolume.Spec.Local != nil
}

func errNotLocal() error { return volume.Invalid("persistent volume", "has no local source") }
