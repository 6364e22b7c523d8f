package intree_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	mount "k8s.io/mount-utils"

	"github.com/podvol/podvol/volume"
	util "github.com/podvol/podvol/volume/intree"
	"github.com/podvol/podvol/volume/volumetest"
)

// share is a plugin of NFS exports, made as the tree's were and then ported: what
// mounts by itself, asks whether it has, and cleans up after a failure.
type share struct {
	host   *util.Host
	config util.VolumeConfig
}

const shareName = "example.com/share"

var (
	_ volume.MountOptionVolumePlugin = (*share)(nil)
	_ volume.PersistentVolumePlugin  = (*share)(nil)
	_ volume.RecyclableVolumePlugin  = (*share)(nil)
)

// probeShares returns the plugin in the way of the tree.
func probeShares(config util.VolumeConfig) []volume.VolumePlugin {
	return []volume.VolumePlugin{&share{config: config}}
}

func (p *share) Init(host volume.VolumeHost) error {
	p.host = util.NewHost(host)
	return nil
}

func (p *share) GetPluginName() string { return shareName }

func (p *share) SupportsMountOption() bool { return true }

func (p *share) GetAccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany}
}

// exportOf returns the NFS source of a spec, nil if it has none.
func exportOf(spec *volume.Spec) (source *v1.NFSVolumeSource, readOnly bool) {
	switch {
	case spec == nil:
	case spec.Volume != nil && spec.Volume.NFS != nil:
		return spec.Volume.NFS, spec.Volume.NFS.ReadOnly
	case spec.PersistentVolume != nil && spec.PersistentVolume.Spec.NFS != nil:
		return spec.PersistentVolume.Spec.NFS, spec.ReadOnly || spec.PersistentVolume.Spec.NFS.ReadOnly
	}
	return nil, false
}

func (p *share) CanSupport(spec *volume.Spec) bool {
	source, _ := exportOf(spec)
	return source != nil
}

func (p *share) GetVolumeName(spec *volume.Spec) (string, error) {
	source, _ := exportOf(spec)
	if source == nil {
		return "", errors.New("the spec has no NFS source")
	}
	return source.Server + "/" + source.Path, nil
}

// README: begin

func (p *share) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	if err := p.host.CheckVolume(shareName, spec, pod); err != nil {
		return nil, err
	}
	if isFile, err := util.CheckVolumeModeFilesystem(spec); err != nil || !isFile {
		return nil, errors.Join(err, errors.New("spec.volumeMode Block is not for NFS"))
	}
	source, readOnly := exportOf(spec)
	if source == nil {
		return nil, errors.New("the spec has no NFS source")
	}
	if source.Server == "" {
		return nil, errors.New("nfs.server must not be empty")
	}
	return &shareMounter{p.volumeOf(spec.Name(), pod.UID), source, readOnly, util.MountOptionFromSpec(spec)}, nil
}

// README: end

func (p *share) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	if err := p.host.CheckUnmount(shareName, name, podUID); err != nil {
		return nil, err
	}
	return &shareUnmounter{p.volumeOf(name, podUID)}, nil
}

func (p *share) ConstructVolumeSpec(_ context.Context, name, _ string) (volume.ReconstructedVolume, error) {
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{Name: name,
		VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Path: name}}})}, nil
}

// Recycle has a pod empty the volume.
func (p *share) Recycle(ctx context.Context, pvName string, spec *volume.Spec, record volume.RecycleEventRecorder) error {
	source, _ := exportOf(spec)
	if source == nil || spec.PersistentVolume == nil {
		return errors.New("the spec is no PersistentVolume with an NFS source")
	}
	pod := p.config.RecyclerPodTemplate.DeepCopy()
	seconds := util.CalculateTimeoutForVolume(p.config.RecyclerMinimumTimeout, p.config.RecyclerTimeoutIncrement, spec.PersistentVolume)
	pod.Spec.ActiveDeadlineSeconds = &seconds
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{NFS: source.DeepCopy()}
	return util.RecycleVolumeByWatchingPodUntilCompletion(ctx, pvName, pod, spec, p.host.VolumeHost, record)
}

type shareVolume struct {
	name    string
	podUID  types.UID
	plugin  *share
	mounter mount.Interface
	volume.MetricsProvider
}

func (p *share) volumeOf(name string, podUID types.UID) *shareVolume {
	v := &shareVolume{name: name, podUID: podUID, plugin: p, mounter: p.host.GetMounter(shareName)}
	v.MetricsProvider = p.host.NewMetricsStatFS(v.GetPath())
	return v
}

func (v *shareVolume) GetPath() string {
	return v.plugin.host.GetPodVolumeDir(v.podUID, shareName, v.name)
}

type shareMounter struct {
	*shareVolume
	source   *v1.NFSVolumeSource
	readOnly bool
	options  []string
}

func (m *shareMounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.readOnly}
}

func (m *shareMounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// README: begin

func (m *shareMounter) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	mounted, err := m.mounter.IsMountPoint(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if mounted {
		return nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	var system []string
	if m.readOnly {
		system = []string{"ro"}
	}
	options := util.JoinMountOptions(m.options, system)
	mounter := util.WithContext(ctx, m.mounter)
	err = mounter.MountSensitiveWithoutSystemd(fmt.Sprintf("%s:%s", m.source.Server, m.source.Path), dir, "nfs", options, nil)
	if err == nil {
		return nil
	}
	if mounted, checkErr := mounter.IsMountPoint(dir); checkErr == nil && mounted {
		if mounter.Unmount(dir) != nil {
			return err // the next teardown tries it again
		}
	}
	os.Remove(dir)
	return err
}

// README: end

type shareUnmounter struct{ *shareVolume }

func (u *shareUnmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

func (u *shareUnmounter) TearDownAt(ctx context.Context, dir string) error {
	if forcer, ok := u.mounter.(mount.MounterForceUnmounter); ok {
		return util.CleanupMountWithForce(ctx, dir, forcer, true, time.Minute)
	}
	return util.CleanupMountPoint(ctx, dir, u.mounter, true)
}

func TestAPortOfNFSConforms(t *testing.T) {
	const needs = "no NFS server is there"
	source := v1.NFSVolumeSource{Server: "10.0.0.1", Path: "/export"}
	serve := func(n *volumetest.Node) { n.Serve("10.0.0.1:/export", map[string]string{"index.html": "hello"}) }
	files := map[string]volumetest.File{"index.html": {Content: "hello"}}
	config := util.VolumeConfig{RecyclerMinimumTimeout: 300, RecyclerTimeoutIncrement: 30, RecyclerPodTemplate: &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pv-recycler-"},
		Spec:       v1.PodSpec{Volumes: []v1.Volume{{Name: "vol"}}},
	}}
	volumetest.Run(t, func() volume.VolumePlugin { return probeShares(config)[0] }, volumetest.Suite{
		Working: []volumetest.Case{{
			Name: "inline", Spec: volumetest.Inline(v1.VolumeSource{NFS: &source}), Prepare: serve, Shared: true, NoKernel: needs,
			Want: volumetest.Want{Files: files, Mount: &volumetest.Mount{Source: "10.0.0.1:/export", FSType: "nfs"}},
		}, {
			Name: "read-only", Spec: volumetest.Persistent(v1.PersistentVolumeSource{NFS: &source}, true), Prepare: serve, Shared: true, NoKernel: needs,
			Want: volumetest.Want{Files: files, ReadOnly: true, Mount: &volumetest.Mount{FSType: "nfs", Options: []string{"ro"}}},
		}, {
			Name: "options", Prepare: serve, Shared: true, NoKernel: needs,
			Spec: func(n *volumetest.Node) *volume.Spec {
				spec := volumetest.Persistent(v1.PersistentVolumeSource{NFS: &source}, false)(n)
				spec.PersistentVolume.Spec.MountOptions = []string{"noexec", "vers=4.1"}
				return spec
			},
			Want: volumetest.Want{Files: files, Mount: &volumetest.Mount{Options: []string{"noexec", "vers=4.1"}}},
		}},
		Refused: []volumetest.RefusedCase{{Name: "no server", NoKernel: needs, Because: "nfs.server",
			Spec: volumetest.Inline(v1.VolumeSource{NFS: &v1.NFSVolumeSource{Path: "/export"}})}},
	})
}
