package intree_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fsgroup"
	util "github.com/podvol/podvol/volume/intree"
	"github.com/podvol/podvol/volume/volumetest"
)

// checkout is a plugin that fills an emptyDir with what a command fetches, made as
// the tree's were and then ported.
type checkout struct {
	host *util.Host
	// run runs git in a directory.
	run func(ctx context.Context, dir string, args ...string) error
}

const checkoutName = "example.com/checkout"

// scratchSpec is what a checkout is built in.
func scratchSpec() volume.Spec {
	return volume.Spec{Volume: &v1.Volume{VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
}

func (p *checkout) Init(host volume.VolumeHost) error {
	p.host = util.NewHost(host)
	return nil
}

func (p *checkout) GetPluginName() string { return checkoutName }

func (p *checkout) CanSupport(spec *volume.Spec) bool {
	return spec != nil && spec.Volume != nil && spec.Volume.GitRepo != nil
}

func (p *checkout) GetVolumeName(spec *volume.Spec) (string, error) {
	if !p.CanSupport(spec) {
		return "", errors.New("the spec has no gitRepo source")
	}
	source := spec.Volume.GitRepo
	return strings.Join([]string{source.Repository, source.Revision, source.Directory}, ":"), nil
}

func (p *checkout) NewMounter(spec *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	if err := p.host.CheckVolume(checkoutName, spec, pod); err != nil {
		return nil, err
	}
	if !p.CanSupport(spec) {
		return nil, errors.New("the spec has no gitRepo source")
	}
	if strings.HasPrefix(spec.Volume.GitRepo.Repository, "-") {
		return nil, errors.New("gitRepo.repository must not be an option of git")
	}
	return &checkoutMounter{checkoutVolume{name: spec.Name(), podUID: pod.UID, plugin: p}, *pod, *spec.Volume.GitRepo}, nil
}

func (p *checkout) NewUnmounter(name string, podUID types.UID) (volume.Unmounter, error) {
	if err := p.host.CheckUnmount(checkoutName, name, podUID); err != nil {
		return nil, err
	}
	return &checkoutUnmounter{checkoutVolume{name: name, podUID: podUID, plugin: p}}, nil
}

func (p *checkout) ConstructVolumeSpec(_ context.Context, name, _ string) (volume.ReconstructedVolume, error) {
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(&v1.Volume{Name: name,
		VolumeSource: v1.VolumeSource{GitRepo: &v1.GitRepoVolumeSource{}}})}, nil
}

type checkoutVolume struct {
	name   string
	podUID types.UID
	plugin *checkout
	volume.NoMetrics
}

func (v *checkoutVolume) GetPath() string {
	return v.plugin.host.GetPodVolumeDir(v.podUID, checkoutName, v.name)
}

func (v *checkoutVolume) metaDir() string {
	return filepath.Join(v.plugin.host.GetPodPluginDir(v.podUID, checkoutName), v.name)
}

type checkoutMounter struct {
	checkoutVolume
	pod    v1.Pod
	source v1.GitRepoVolumeSource
}

func (m *checkoutMounter) GetAttributes() volume.Attributes {
	return volume.Attributes{Managed: true, SELinuxRelabel: true}
}

func (m *checkoutMounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

func (m *checkoutMounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	if util.IsReady(m.metaDir()) {
		return nil
	}
	wrapped, err := m.plugin.host.NewWrapperMounter(m.name, scratchSpec(), &m.pod, volume.VolumeOptions{})
	if err != nil {
		return err
	}
	// What a crash has left half done goes: git clones into nothing else.
	if err := util.UnmountViaEmptyDir(ctx, dir, m.plugin.host, m.name, scratchSpec(), m.podUID); err != nil {
		return err
	}
	if err := wrapped.SetUpAt(ctx, dir, args); err != nil {
		return err
	}
	if err := m.plugin.run(ctx, dir, "clone", "--", m.source.Repository, "."); err != nil {
		return fmt.Errorf("git clone: %w", err)
	}
	if err := fsgroup.Set(ctx, dir, m.GetAttributes(), args); err != nil {
		return err
	}
	return util.SetReady(m.metaDir())
}

type checkoutUnmounter struct{ checkoutVolume }

func (u *checkoutUnmounter) TearDown(ctx context.Context) error {
	return u.TearDownAt(ctx, u.GetPath())
}

func (u *checkoutUnmounter) TearDownAt(ctx context.Context, dir string) error {
	if err := util.ClearReady(u.metaDir()); err != nil {
		return err
	}
	return util.UnmountViaEmptyDir(ctx, dir, u.plugin.host, u.name, scratchSpec(), u.podUID)
}

// clone copies a directory, as git would into one that must be empty.
func clone(ctx context.Context, dir string, args ...string) error {
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 || ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx), fmt.Errorf("%s is not empty: %v", dir, entries))
	}
	return os.CopyFS(dir, os.DirFS(args[2]))
}

func TestAPortOfGitRepoConforms(t *testing.T) {
	// README: begin
	volumetest.Run(t, func() volume.VolumePlugin { return &checkout{run: clone} }, volumetest.Suite{
		Working: []volumetest.Case{{
			Name: "cloned",
			Spec: func(n *volumetest.Node) *volume.Spec {
				return volumetest.Inline(v1.VolumeSource{GitRepo: &v1.GitRepoVolumeSource{Repository: n.Dir}})(n)
			},
			Prepare: func(n *volumetest.Node) { n.Write(map[string]string{"README": "read me", "deep/er/file": "data"}) },
			Want:    volumetest.Want{Files: map[string]volumetest.File{"README": {Content: "read me"}, "deep/er/file": {Content: "data"}}},
		}},
		Refused: []volumetest.RefusedCase{{Name: "an option", Because: "gitRepo.repository",
			Spec: volumetest.Inline(v1.VolumeSource{GitRepo: &v1.GitRepoVolumeSource{Repository: "--upload-pack=x"}})}},
	})
	// README: end
}
