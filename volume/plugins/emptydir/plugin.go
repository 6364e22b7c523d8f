// Package emptydir gives a pod a private directory that lives as long as the
// pod: plugin kubernetes.io/empty-dir, on disk, in memory or in huge pages.
//
// In memory and in huge pages sizeLimit is a hard limit of the file system. On
// disk nothing in the kernel enforces it; writing more is not stopped.
package emptydir

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/scratch"
)

// PluginName is the plugin's name.
const PluginName = scratch.PluginName

// New returns the plugin.
func New() volume.VolumePlugin { return &plugin{} }

type plugin struct {
	host  volume.VolumeHost
	meter volume.Meter
}

var _ volume.SourceDescriber = (*plugin)(nil)

func (p *plugin) Init(host volume.VolumeHost) error {
	p.host = host
	return nil
}

func (p *plugin) GetPluginName() string { return PluginName }

func (p *plugin) CanSupport(spec *volume.Spec) bool {
	return spec != nil && spec.Volume != nil && spec.Volume.EmptyDir != nil
}

// GetVolumeName returns the volume's name: its data has no other.
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	if !p.CanSupport(spec) {
		return "", errNotEmptyDir()
	}
	return spec.Name(), nil
}

// DescribeSource returns the medium: "disk", "Memory", "HugePages-2Mi".
func (p *plugin) DescribeSource(spec *volume.Spec) string {
	switch {
	case !p.CanSupport(spec):
		return ""
	case spec.Volume.EmptyDir.Medium == v1.StorageMediumDefault:
		return "disk"
	}
	return string(spec.Volume.EmptyDir.Medium)
}

func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	pv, err := volume.NewPodVolume(p.host, PluginName, spec, pod)
	if err != nil {
		return nil, pv.Error("NewMounter", err)
	}
	if !p.CanSupport(spec) {
		return nil, pv.Error("NewMounter", errNotEmptyDir())
	}
	source := spec.Volume.EmptyDir
	if err := volume.ValidateEmptyDir(source); err != nil {
		return nil, pv.Error("NewMounter", err)
	}
	m, err := mediumOf(source, pod)
	if err != nil {
		return nil, pv.Error("NewMounter", err)
	}
	return &mounter{
		directory: directory{pv, &p.meter},
		medium:    m,
		limit:     sizeLimit(source),
		podLimit:  podMemoryLimit(pod),
	}, nil
}

func (p *plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.host, PluginName, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{directory{pv, &p.meter}}, nil
}

// ConstructVolumeSpec tells the medium by the mount table. The size limit is
// not known any more, so the spec is never complete.
func (p *plugin) ConstructVolumeSpec(_ context.Context, volumeName, volumePath string) (volume.ReconstructedVolume, error) {
	table, err := mount.TableOf(p.host.GetMounter())
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	entry, mounted, err := table.At(volumePath)
	if err != nil {
		return volume.ReconstructedVolume{}, err
	}
	source := &v1.EmptyDirVolumeSource{}
	if mounted {
		source.Medium = scratch.MediumOf(entry)
	}
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{
		Name: volumeName, VolumeSource: v1.VolumeSource{EmptyDir: source}})}, nil
}

func errNotEmptyDir() error { return volume.Invalid("volume", "has no emptyDir source") }

// containers are all of the pod's that have resources of their own.
func containers(pod *v1.Pod) []v1.Container {
	return slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
}
