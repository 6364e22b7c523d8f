package projection

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/atomicdir"
	"github.com/podvol/podvol/volume/internal/payload"
	"github.com/podvol/podvol/volume/internal/pluginbase"
	"github.com/podvol/podvol/volume/meter"
	"github.com/podvol/podvol/volume/validation"
	"github.com/podvol/podvol/volume/volumesource"
)

// Kind is all in which the plugins differ.
type Kind struct {
	// Name is the plugin's name.
	Name string
	// Medium is where the files lie.
	Medium v1.StorageMedium
	// Empty is the kind's source without contents.
	Empty v1.VolumeSource
	// Project translates a volume; false means that it is of another kind. It
	// does not check anything.
	Project func(*v1.Volume) (payload.Projection, bool)
	// VolumeName is the answer of GetVolumeName; nil means the volume's name.
	VolumeName func(*v1.Volume) string
}

// Medium is where files lie that may be secret: on a tmpfs, unless they shall be on disk.
func Medium(onDisk bool) v1.StorageMedium {
	if onDisk {
		return v1.StorageMediumDefault
	}
	return v1.StorageMediumMemory
}

// Plugin is the plugin of a kind. Beside the volume plugin itself it has the
// capabilities [volume.DependentVolumePlugin] and [volumesource.Describer]; its
// mounters are [volume.Refresher] values.
type Plugin struct {
	kind Kind
	host volume.VolumeHost
	pluginbase.Hosted
	publisher atomicdir.Publisher
	issued    payload.Issued
	meter     meter.Meter
}

var (
	_ volume.DependentVolumePlugin = (*Plugin)(nil)
	_ volumesource.Describer       = (*Plugin)(nil)
)

// NewPlugin returns the plugin of a kind.
func NewPlugin(kind Kind) *Plugin {
	// The volume manager owns its root directory. A container sees the directory itself, and
	// could hold a lock on it.
	return &Plugin{kind: kind, publisher: atomicdir.Publisher{Sole: true}}
}

// Init implements [volume.VolumePlugin].
func (p *Plugin) Init(host volume.VolumeHost) error {
	p.host = host
	p.SetInitHost(host)
	return nil
}

// GetPluginName implements [volume.VolumePlugin].
func (p *Plugin) GetPluginName() string { return p.kind.Name }

// CanSupport implements [volume.VolumePlugin].
func (p *Plugin) CanSupport(spec *volume.Spec) bool {
	_, ok := p.project(spec)
	return ok
}

// GetVolumeName implements [volume.VolumePlugin].
func (p *Plugin) GetVolumeName(spec *volume.Spec) (string, error) {
	if !p.CanSupport(spec) {
		return "", p.foreign(spec)
	}
	if p.kind.VolumeName != nil {
		return p.kind.VolumeName(spec.Volume), nil
	}
	return spec.Name(), nil
}

// NewMounter implements [volume.VolumePlugin].
func (p *Plugin) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	projection, ok := p.project(spec)
	if !ok {
		return nil, p.foreign(spec)
	}
	v, err := volume.NewPodVolume(p.host, p.kind.Name, spec, pod)
	if err != nil {
		return nil, err
	}
	if err := validation.Files(spec.Volume); err != nil {
		return nil, v.Error("NewMounter", err)
	}
	if err := projection.Validate(pod); err != nil {
		return nil, v.Error("NewMounter", err)
	}
	mountPoints, err := nestedMountPoints(spec.Name(), pod)
	if err != nil {
		return nil, v.Error("NewMounter", err)
	}
	return &mounter{place: place{v, p}, projection: projection, pod: pod, mountPoints: mountPoints}, nil
}

// NewUnmounter implements [volume.VolumePlugin].
func (p *Plugin) NewUnmounter(volumeName string, podUID types.UID) (volume.Unmounter, error) {
	v, err := volume.NewUnmountedPodVolume(p.host, p.kind.Name, volumeName, podUID)
	if err != nil {
		return nil, err
	}
	return &unmounter{place{v, p}}, nil
}

// ConstructVolumeSpec implements [volume.VolumePlugin]. Where the files came
// from cannot be told, so the spec's source is empty: it serves to tear the
// volume down.
func (p *Plugin) ConstructVolumeSpec(_ context.Context, volumeName, _ string) (volume.ReconstructedVolume, error) {
	if err := volume.CheckPathSegment("volume name", volumeName); err != nil {
		return volume.ReconstructedVolume{}, err
	}
	v := &v1.Volume{Name: volumeName, VolumeSource: *p.kind.Empty.DeepCopy()}
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(v)}, nil
}

// DependsOn implements [volume.DependentVolumePlugin].
func (p *Plugin) DependsOn(spec *volume.Spec, pod *v1.Pod) []volume.ObjectRef {
	projection, ok := p.project(spec)
	if !ok || pod == nil {
		return nil
	}
	return projection.DependsOn(pod)
}

// DescribeSource implements [volumesource.Describer].
func (p *Plugin) DescribeSource(spec *volume.Spec) string {
	projection, ok := p.project(spec)
	if !ok {
		return spec.Name()
	}
	return projection.Describe()
}

func (p *Plugin) project(spec *volume.Spec) (payload.Projection, bool) {
	if spec == nil || spec.Volume == nil {
		return payload.Projection{}, false
	}
	return p.kind.Project(spec.Volume)
}

func (p *Plugin) foreign(spec *volume.Spec) error {
	return volume.Invalid("volume "+spec.Name(), "is not of plugin %s", p.kind.Name)
}
