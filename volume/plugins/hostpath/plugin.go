// Package hostpath gives pods paths of the node itself: plugin
// kubernetes.io/host-path, inline or by a PersistentVolume.
//
// The path is checked, and created where its type says so. Nothing is ever
// made below the pod's directory: containers get the path itself.
package hostpath

import (
	"context"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/hostfiles"
	"github.com/podvol/podvol/volume/internal/pvoptions"
)

// PluginName is the plugin's name.
const PluginName = "kubernetes.io/host-path"

// New returns the plugin.
func New() volume.VolumePlugin { return &plugin{} }

type plugin struct {
	host  volume.VolumeHost
	files hostfiles.Own
	meter volume.Meter
}

var (
	_ volume.PersistentVolumePlugin = (*plugin)(nil)
	_ volume.SourceDescriber        = (*plugin)(nil)
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

// GetVolumeName returns the clean path.
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	source, ok := sourceOf(spec)
	if !ok {
		return "", errNotHostPath()
	}
	return filepath.Clean(source.Path), nil
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

func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	pv, err := volume.NewPodVolume(p.host, PluginName, spec, pod)
	if err != nil {
		return nil, pv.Error("NewMounter", err)
	}
	source, ok := sourceOf(spec)
	if !ok {
		return nil, pv.Error("NewMounter", errNotHostPath())
	}
	if err := pvoptions.CheckFilesystem(spec, "hostPath"); err != nil {
		return nil, pv.Error("NewMounter", err)
	}
	if err := volume.CheckAbsolutePath("hostPath.path", source.Path); err != nil {
		return nil, pv.Error("NewMounter", err)
	}
	want, err := parseType(source.Type)
	if err != nil {
		return nil, pv.Error("NewMounter", err)
	}
	return &mounter{PodVolume: pv, plugin: p, path: filepath.Clean(source.Path), want: want, readOnly: pvoptions.ReadOnly(spec)}, nil
}

func (p *plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{PodVolume: pv}, nil
}

// ConstructVolumeSpec knows no path, since a hostPath volume leaves nothing on
// disk; like the kubelet's it puts the volume's name there. Tearing it down
// does nothing anyway.
func (p *plugin) ConstructVolumeSpec(_ context.Context, volumeName, _ string) (volume.ReconstructedVolume, error) {
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{
		Name:         volumeName,
		VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: volumeName}},
	})}, nil
}

func sourceOf(spec *volume.Spec) (*v1.HostPathVolumeSource, bool) {
	switch {
	case spec == nil:
		return nil, false
	case spec.Volume != nil:
		return spec.Volume.HostPath, spec.Volume.HostPath != nil
	case spec.PersistentVolume != nil:
		return spec.PersistentVolume.Spec.HostPath, spec.PersistentVolume.Spec.HostPath != nil
	}
	return nil, false
}

func errNotHostPath() error { return volume.Invalid("volume", "has no hostPath source") }
