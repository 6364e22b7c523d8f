package volumetest

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// alteration is what a plugin does otherwise than note; nil fields are note's.
// It is made anew for each instance, so that what its functions share is what
// a plugin remembers until it is restarted.
type alteration struct {
	pluginName     func() string
	init           func(*note, volume.VolumeHost) error
	canSupport     func(*note, *volume.Spec) bool
	volumeName     func(*note, *volume.Spec) (string, error)
	accessModes    func() []v1.PersistentVolumeAccessMode
	describeSource func(*note, *volume.Spec) string
	dependsOn      func(*note, *volume.Spec, *v1.Pod) []volume.ObjectRef
	newMounter     func(*note, *volume.Spec, *v1.Pod) (*noteMounter, error)
	newUnmounter   func(*note, string, types.UID) (*noteUnmounter, error)
	construct      func(*note, context.Context, string, string) (volume.ReconstructedVolume, error)

	attributes func(*noteMounter) volume.Attributes
	setUp      func(context.Context, *noteMounter) error // SetUp alone
	setUpAt    func(context.Context, *noteMounter, string) error
	setUpWith  func(context.Context, *noteMounter, string, volume.MounterArgs) error // instead of setUpAt
	tearDown   func(context.Context, *noteUnmounter) error                           // TearDown alone
	tearDownAt func(context.Context, *noteUnmounter, string) error
	metrics    func(context.Context, *noteVolume) (*volume.Metrics, error)
}

// altered returns what makes plugins with the alteration.
func altered(alter func() alteration) func() volume.VolumePlugin {
	return func() volume.VolumePlugin { return &alteredNote{&note{}, alter()} }
}

type alteredNote struct {
	*note
	alter alteration
}

func (p *alteredNote) GetPluginName() string {
	if f := p.alter.pluginName; f != nil {
		return f()
	}
	return p.note.GetPluginName()
}

func (p *alteredNote) Init(host volume.VolumeHost) error {
	if f := p.alter.init; f != nil {
		return f(p.note, host)
	}
	return p.note.Init(host)
}

func (p *alteredNote) CanSupport(spec *volume.Spec) bool {
	if f := p.alter.canSupport; f != nil {
		return f(p.note, spec)
	}
	return p.note.CanSupport(spec)
}

func (p *alteredNote) GetVolumeName(spec *volume.Spec) (string, error) {
	if f := p.alter.volumeName; f != nil {
		return f(p.note, spec)
	}
	return p.note.GetVolumeName(spec)
}

func (p *alteredNote) GetAccessModes() []v1.PersistentVolumeAccessMode {
	if f := p.alter.accessModes; f != nil {
		return f()
	}
	return p.note.GetAccessModes()
}

func (p *alteredNote) DescribeSource(spec *volume.Spec) string {
	if f := p.alter.describeSource; f != nil {
		return f(p.note, spec)
	}
	return p.note.DescribeSource(spec)
}

func (p *alteredNote) DependsOn(spec *volume.Spec, pod *v1.Pod) []volume.ObjectRef {
	if f := p.alter.dependsOn; f != nil {
		return f(p.note, spec, pod)
	}
	return p.note.DependsOn(spec, pod)
}

func (p *alteredNote) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	m, err := p.mounter(spec, pod)
	if err != nil {
		return nil, err
	}
	return &alteredMounter{m, p.alter}, nil
}

func (p *alteredNote) mounter(spec *volume.Spec, pod *v1.Pod) (*noteMounter, error) {
	if f := p.alter.newMounter; f != nil {
		return f(p.note, spec, pod)
	}
	return p.note.newMounter(spec, pod)
}

func (p *alteredNote) NewUnmounter(name string, uid types.UID) (volume.Unmounter, error) {
	u, err := p.unmounter(name, uid)
	if err != nil {
		return nil, err
	}
	return &alteredUnmounter{u, p.alter}, nil
}

func (p *alteredNote) unmounter(name string, uid types.UID) (*noteUnmounter, error) {
	if f := p.alter.newUnmounter; f != nil {
		return f(p.note, name, uid)
	}
	return p.note.newUnmounter(name, uid)
}

func (p *alteredNote) ConstructVolumeSpec(ctx context.Context, name, path string) (volume.ReconstructedVolume, error) {
	if f := p.alter.construct; f != nil {
		return f(p.note, ctx, name, path)
	}
	return p.note.ConstructVolumeSpec(ctx, name, path)
}

type alteredMounter struct {
	*noteMounter
	alter alteration
}

func (m *alteredMounter) GetAttributes() volume.Attributes {
	if f := m.alter.attributes; f != nil {
		return f(m.noteMounter)
	}
	return m.noteMounter.GetAttributes()
}

func (m *alteredMounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	if f := m.alter.setUp; f != nil {
		return f(ctx, m.noteMounter)
	}
	return m.SetUpAt(ctx, m.GetPath(), args)
}

func (m *alteredMounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	if f := m.alter.setUpWith; f != nil {
		return f(ctx, m.noteMounter, dir, args)
	}
	if f := m.alter.setUpAt; f != nil {
		return f(ctx, m.noteMounter, dir)
	}
	return m.noteMounter.SetUpAt(ctx, dir, args)
}

func (m *alteredMounter) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	if f := m.alter.metrics; f != nil {
		return f(ctx, &m.noteVolume)
	}
	return m.noteMounter.GetMetrics(ctx)
}

type alteredUnmounter struct {
	*noteUnmounter
	alter alteration
}

func (u *alteredUnmounter) TearDown(ctx context.Context) error {
	if f := u.alter.tearDown; f != nil {
		return f(ctx, u.noteUnmounter)
	}
	return u.TearDownAt(ctx, u.GetPath())
}

func (u *alteredUnmounter) TearDownAt(ctx context.Context, dir string) error {
	if f := u.alter.tearDownAt; f != nil {
		return f(ctx, u.noteUnmounter, dir)
	}
	return u.noteUnmounter.TearDownAt(ctx, dir)
}

func (u *alteredUnmounter) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	if f := u.alter.metrics; f != nil {
		return f(ctx, &u.noteVolume)
	}
	return u.noteUnmounter.GetMetrics(ctx)
}
