package volumemanager_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// Of the FUSE protocol (linux/fuse.h) what a server needs to be mounted.
const (
	fuseGetattr = 3
	fuseInit    = 26
)

type fuseIn struct {
	Len, Opcode          uint32
	Unique, Node         uint64
	UID, GID, PID, Extra uint32
}

type fuseOut struct {
	Len    uint32
	Error  int32
	Unique uint64
}

// fuseServer serves one mount of an empty directory, until it falls silent.
type fuseServer struct {
	device *os.File
	silent atomic.Bool
	// asked receives once a process waits for an answer that does not come.
	asked chan struct{}
	gone  chan struct{}
}

func (s *fuseServer) serve() {
	defer close(s.gone)
	request := make([]byte, 1<<17)
	for {
		n, err := s.device.Read(request)
		if err != nil {
			return // unmounted, aborted or closed
		}
		var in fuseIn
		if _, err := binary.Decode(request[:n], binary.NativeEndian, &in); err != nil {
			return
		}
		switch {
		case in.Opcode == fuseInit: // the mount's own, which may be read after it fell silent
			body := make([]uint32, 16) // struct fuse_init_out
			body[0], body[1], body[5] = 7, 31, 4096
			s.answer(in, 0, body)
		case s.silent.Load():
			select {
			case s.asked <- struct{}{}:
			default:
			}
		case in.Opcode == fuseGetattr:
			body := make([]uint32, 26) // struct fuse_attr_out, valid for no time
			body[4], body[19], body[20] = 1, unix.S_IFDIR|0o755, 2
			s.answer(in, 0, body)
		default:
			s.answer(in, -int32(unix.ENOSYS), nil)
		}
	}
}

func (s *fuseServer) answer(in fuseIn, errno int32, body []uint32) {
	var b bytes.Buffer
	size := binary.Size(fuseOut{}) + 4*len(body)
	binary.Write(&b, binary.NativeEndian, fuseOut{Len: uint32(size), Error: errno, Unique: in.Unique})
	binary.Write(&b, binary.NativeEndian, body)
	if _, err := s.device.Write(b.Bytes()); err != nil {
		s.device.Close() // so that nobody waits for a broken server
	}
}

func (s *fuseServer) close() {
	s.device.Close() // fails all that waits for an answer
	<-s.gone
}

// fusePlugin is a plugin whose volumes are FUSE file systems, or directories
// of those that are mounted already.
type fusePlugin struct {
	t       testing.TB
	host    volume.VolumeHost
	options mount.UnmountOptions
	// patience is how long a set-up may take; 0: as long as the manager lets it.
	patience time.Duration
	servers  sync.Map // of the pods' UIDs to their servers
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
func (p *fusePlugin) server(pod *v1.Pod) *fuseServer {
	p.t.Helper()
	s, ok := p.servers.Load(pod.UID)
	if !ok {
		p.t.Fatalf("pod %s has no server", pod.Name)
	}
	return s.(*fuseServer)
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
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("server-of-"+string(m.pod), dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		return err
	}
	// Only now: the device cannot be polled before it is mounted.
	s := &fuseServer{device: os.NewFile(uintptr(fd), "/dev/fuse"), asked: make(chan struct{}, 1), gone: make(chan struct{})}
	m.plugin.servers.Store(m.pod, s)
	go s.serve()
	m.plugin.t.Cleanup(s.close)
	return nil
}

func (m *fuseMount) TearDown(ctx context.Context) error { return m.TearDownAt(ctx, m.dir) }
func (m *fuseMount) TearDownAt(ctx context.Context, dir string) error {
	return podmount.TearDown(ctx, m.plugin.host.GetMounter(), dir, m.plugin.options)
}
