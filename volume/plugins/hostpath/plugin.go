package hostpath

import (
	"context"
	"path/filepath"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/hostfiles"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/meter"
	"github.com/podvol/podvol/volume/validation"
	"github.com/podvol/podvol/volume/volumesource"
)

// PluginName is the plugin's name.
const PluginName = "kubernetes.io/host-path"

// New returns the plugin. It can provision, delete and recycle volumes only if
// the configuration says so.
func New(config Config) volume.VolumePlugin {
	p := &plugin{
		Kind: pluginbase.Kind[v1.HostPathVolumeSource]{
			Name: PluginName, Field: "hostPath",
			Inline:     func(s *v1.VolumeSource) *v1.HostPathVolumeSource { return s.HostPath },
			Persistent: func(s *v1.PersistentVolumeSource) *v1.HostPathVolumeSource { return s.HostPath },
		},
		config: config,
	}
	provisions, recycles := len(config.Provision.Bases) > 0, len(config.Recycle.Below) > 0
	switch {
	case provisions && recycles:
		return struct {
			*plugin
			maker
			emptier
		}{p, maker{p}, emptier{p}}
	case provisions:
		return struct {
			*plugin
			maker
		}{p, maker{p}}
	case recycles:
		return struct {
			*plugin
			emptier
		}{p, emptier{p}}
	}
	return p
}

type plugin struct {
	pluginbase.Kind[v1.HostPathVolumeSource]
	config Config
	files  hostfiles.Own
	meter  meter.Meter
	// work has what makes, deletes and empties volumes.
	work blockingcall.Group[string]
	// formers has, by directory, the volumes found in it at its first use.
	formers sync.Map
}

// Init implements [volume.VolumePlugin]. A configuration that cannot work is a
// *[volume.InvalidSpecError].
func (p *plugin) Init(host volume.VolumeHost) error {
	if err := p.config.check(); err != nil {
		return err
	}
	return p.Kind.Init(host)
}

var (
	_ volume.PersistentVolumePlugin = (*plugin)(nil)
	_ volumesource.Describer        = (*plugin)(nil)
	_ volumesource.Placer           = (*plugin)(nil)
)

// GetVolumeName returns the clean path.
func (p *plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	source, err := p.Source(spec)
	if err != nil {
		return "", err
	}
	return filepath.Clean(source.Path), nil
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

func (p *plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	return p.Mounter(spec, pod, func(pv volume.PodVolume, source *v1.HostPathVolumeSource) (volume.Mounter, error) {
		if err := pluginbase.CheckFilesystem(spec, "hostPath"); err != nil {
			return nil, err
		}
		if err := validation.CheckAbsolutePath("hostPath.path", source.Path); err != nil {
			return nil, err
		}
		want, err := parseType(source.Type)
		if err != nil {
			return nil, err
		}
		m := &mounter{PodVolume: pv, plugin: p, path: filepath.Clean(source.Path), want: want, readOnly: pluginbase.ReadOnly(spec)}
		if made, ok := madeOf(spec.PersistentVolume); ok {
			m.made = &made
		}
		return m, nil
	})
}

func (p *plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	pv, err := volume.NewUnmountedPodVolume(p.Host, PluginName, volumeName, podUID)
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
