package volumemanager_test

import (
	"context"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/silentfuse"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// fusePlugin is a plugin whose volumes are FUSE file systems, or directories
// of those that are mounted already.
type fusePlugin struct {
	t       testing.TB
	host    volume.VolumeHost
	options mount.UnmountOptions
	// patience is how long a set-up may take; 0: as long as the manager lets it.
	patience time.Duration
	servers  sync.Map // of the pods' UIDs to their servers
	closing  sync.Once
}

const fusePluginName = "example.com/fuse"

// fuseVolume is a file system of its own, or what is at path.
func fuseVolume(name, path string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: fusePluginName, Options: map[string]string{"path": path}}}}
}

func (p *fusePlugin) Init(host volume.VolumeHost) error { p.host = host; return nil }
func (p *fusePlugin) GetPluginName() string             { return fusePluginName }
func (p *fusePlugin) CanSupport(s *volume.Spec) bool {
	return s.Volume != nil && s.Volume.FlexVolume != nil
}

func (p *fusePlugin) GetVolumeName(s *volume.Spec) (string, error) {
	return "fuse" + s.Volume.FlexVolume.Options["path"], nil
}

func (p *fusePlugin) NewMounter(s *volume.Spec, pod *v1.Pod) (volume.Mounter, error) {
	dir := p.host.GetPodVolumeDir(pod.UID, fusePluginName, s.Name())
	return &fuseMount{plugin: p, pod: pod.UID, dir: dir, source: s.Volume.FlexVolume.Options["path"]}, nil
}

func (p *fusePlugin) NewUnmounter(name string, pod types.UID) (volume.Unmounter, error) {
	return &fuseMount{plugin: p, pod: pod, dir: p.host.GetPodVolumeDir(pod, fusePluginName, name)}, nil
}

func (p *fusePlugin) ConstructVolumeSpec(_ context.Context, name, _ string) (volume.ReconstructedVolume, error) {
	return volume.ReconstructedVolume{Spec: volume.NewSpecFromVolume(new(fuseVolume(name, "")))}, nil
}

// server returns a pod's.
func (p *fusePlugin) server(pod *v1.Pod) *silentfuse.Server {
	p.t.Helper()
	s, ok := p.servers.Load(pod.UID)
	if !ok {
		p.t.Fatalf("pod %s has no server", pod.Name)
	}
	return s.(*silentfuse.Server)
}

type fuseMount struct {
	volume.NoMetrics
	plugin      *fusePlugin
	pod         types.UID
	dir, source string
}

func (m *fuseMount) GetPath() string                  { return m.dir }
func (m *fuseMount) GetAttributes() volume.Attributes { return volume.Attributes{} }
func (m *fuseMount) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.dir, args)
}

func (m *fuseMount) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	if m.plugin.patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.plugin.patience)
		defer cancel()
	}
	mounter := m.plugin.host.GetMounter()
	if m.source != "" {
		_, err := podmount.SetUp(ctx, mounter, mount.Request{Source: m.source, Target: dir, Options: []string{"bind"}}, anyMount)
		return err
	}
	if mounted, err := podmount.Mounted(mounter, mount.Request{Target: dir}, anyMount); err != nil || mounted {
		return err
	}
	if _, err := podmount.MakeDir(dir, 0o755); err != nil {
		return err
	}
	// The server mounts itself, as FUSE servers do.
	s, err := silentfuse.Mount("server-of-"+string(m.pod), dir)
	if err != nil {
		return err
	}
	m.plugin.keep(m.pod, s)
	return nil
}

// keep closes a server at the test's end, before the manager is waited for. A test that has
// thousands takes them out of servers when it has closed them.
func (p *fusePlugin) keep(pod types.UID, s *silentfuse.Server) {
	if before, ok := p.servers.Swap(pod, s); ok {
		p.t.Cleanup(before.(*silentfuse.Server).Close)
	}
	p.closing.Do(func() {
		p.t.Cleanup(func() {
			for _, s := range p.servers.Range {
				s.(*silentfuse.Server).Close()
			}
		})
	})
}

func (m *fuseMount) TearDown(ctx context.Context) error { return m.TearDownAt(ctx, m.dir) }
func (m *fuseMount) TearDownAt(ctx context.Context, dir string) error {
	return podmount.TearDown(ctx, m.plugin.host.GetMounter(), dir, m.plugin.options)
}
