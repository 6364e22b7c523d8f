package hostpath

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/appear"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/pathin"
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
	// missing are paths that volumes wait for.
	missing appear.Watch
	meter   meter.Meter
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
	_ volume.RunningPlugin          = (*plugin)(nil)
)

// Run implements [volume.RunningPlugin]: it wakes volumes whose missing paths appear. Where
// the host's files are another's, it knows of none.
func (p *plugin) Run(ctx context.Context, wake func(source string)) error {
	host := p.InitHost() // another manager may initialise the plugin meanwhile
	p.missing.Run(ctx, table.Of(host.GetMounter()).Subscribe(ctx), wake)
	return nil
}

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
		m := &mounter{PodVolume: pv, plugin: p, source: source.Path, path: filepath.Clean(source.Path), want: want, readOnly: pluginbase.ReadOnly(spec)}
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

type mounter struct {
	volume.PodVolume
	plugin   *plugin
	source   string // the path as the volume names it
	path     string
	want     pathType
	readOnly bool
	made     *made // nil: it was not provisioned
}

// GetPath returns the path on the host.
func (m *mounter) GetPath() string { return m.path }

// GetAttributes reports Managed false: files of the node are never re-owned or
// relabelled for a pod.
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.readOnly}
}

// GetMetrics returns the metrics of the path's file system.
func (m *mounter) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	metrics, err := m.plugin.meter.FileSystem(ctx, m.path)
	return metrics, m.Error("GetMetrics", err)
}

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.path, args)
}

// SetUpAt checks the path and creates it where its type says so, but for a
// volume that was provisioned: one whose directory is gone is [ErrLost], or
// [ErrNoBook] where its disk seems not to be mounted. It makes nothing at dir.
func (m *mounter) SetUpAt(ctx context.Context, _ string, _ volume.MounterArgs) error {
	files := m.plugin.files.Of(m.Host)
	if m.made != nil {
		if err := m.made.checkThere(ctx, files); err != nil {
			return m.Error("SetUp", err)
		}
	}
	err := ensure(ctx, files, m.path, m.want)
	if errors.Is(err, fs.ErrNotExist) && files == volume.HostFiles(&m.plugin.files) {
		m.plugin.missing.Await(m.source)
	}
	return m.Error("SetUp", err)
}

type unmounter struct {
	volume.PodVolume
	volume.NoMetrics
}

// GetPath is empty: the path of a hostPath volume is in its spec alone.
func (u *unmounter) GetPath() string { return "" }

// TearDown does nothing: the path is the node's.
func (u *unmounter) TearDown(context.Context) error { return nil }

// TearDownAt does nothing: the path is the node's.
func (u *unmounter) TearDownAt(context.Context, string) error { return nil }

// SharesData reports whether two volumes are the same path, or one lies in the
// other, by their names alone: links are not followed. Volumes inside a pod's
// inline hostPath do not count: a pod that looks at the whole node, like a
// monitor, uses no other pod's volume.
func (p *plugin) SharesData(a, b *volume.Spec) (bool, error) {
	first, err := p.Source(a)
	if err != nil {
		return false, err
	}
	second, err := p.Source(b)
	if err != nil {
		return false, err
	}
	x, y := filepath.Clean(first.Path), filepath.Clean(second.Path)
	if a.PersistentVolume == nil && pathin.Strictly(x, y) || b.PersistentVolume == nil && pathin.Strictly(y, x) {
		return false, nil
	}
	return pathin.Overlap(x, y), nil
}

// SourcePlace implements [volumesource.Placer].
func (p *plugin) SourcePlace(spec *volume.Spec) (on, path string, err error) {
	source, err := p.Source(spec)
	if err != nil {
		return "", "", err
	}
	return "", filepath.Clean(source.Path), nil
}
