package hostns

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/ladder"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/mount/propagation"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/eintr"
)

// Config configures a [Mounter]. The zero value is for an agent in a pod with hostPID.
type Config struct {
	// Namespaces is a directory with nsfs files of the host's namespaces: mnt, and where they
	// are there net, uts, ipc and cgroup. Empty means /proc/1/ns. It is opened when a
	// process is started there.
	Namespaces string
	// Host configures the mounts there. Paths are the host's. Its Logger is this process's, and
	// its Resolver is not used: names are resolved by the host.
	Host host.Config
	// Cgroup is the cgroup, by its name below each hierarchy's root, that mount helpers and
	// their daemons run in where systemd does not run the host. Empty means "podvol-mounts",
	// "-" the container's own.
	Cgroup string
}

func (c Config) namespaces() string {
	if c.Namespaces == "" {
		return "/proc/1/ns"
	}
	return c.Namespaces
}

func (c Config) cgroup() string {
	switch c.Cgroup {
	case "":
		return "podvol-mounts"
	case "-":
		return ""
	}
	return c.Cgroup
}

// settings are what the child gets. The logger stays here, and so does the resolver.
func (c Config) settings() settings {
	h := c.Host
	return settings{
		Via: h.Via, MountCommand: h.MountCommand, HelperDirs: h.HelperDirs, FilesystemsFile: h.FilesystemsFile, ModulesDir: h.ModulesDir,
		OSReleaseFile: h.OSReleaseFile, SystemdDir: h.SystemdDir, CgroupDir: h.CgroupDir, Cgroup: c.cgroup(), OwnProcesses: c.hasOwnProcesses(),
	}
}

// config is the mounter's in the child.
func (s settings) config() host.Config {
	return host.Config{
		Via: s.Via, MountCommand: s.MountCommand, HelperDirs: s.HelperDirs, FilesystemsFile: s.FilesystemsFile, ModulesDir: s.ModulesDir,
		OSReleaseFile: s.OSReleaseFile, SystemdDir: s.SystemdDir, CgroupDir: s.CgroupDir,
	}
}

func (c Config) logger() *slog.Logger {
	if c.Host.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Host.Logger
}

// New returns a mounter. It does no I/O: the first call starts the process in the
// host's namespaces, for which the program must call [Main].
func New(c Config) *Mounter {
	m := &Mounter{config: c, turn: make(chan struct{}, 1), own: table.Kernel()}
	m.mounts = remoteTable{m}
	return m
}

// Mounter mounts in the host's mount namespace, as [host.Mounter] does there. It implements
// [mount.ContextMounter]; all methods are safe for concurrent use. Its errors are
// *[mount.Error] values; one without an answer of the host's matches [ErrChildEnded], and is
// Uncertain unless nothing was begun.
type Mounter struct {
	config Config
	mounts mount.Table
	own    mount.Table   // this process's
	turn   chan struct{} // held while a child is started

	mu      sync.Mutex
	current *session
	closed  bool
}

// Close ends the process in the host's namespaces, and with it the calls under way; mounts stay.
// Calls after it fail with [ErrChildEnded]. It may be repeated.
func (m *Mounter) Close() error {
	m.mu.Lock()
	m.closed = true
	s := m.current
	m.current = nil
	m.mu.Unlock()
	if s != nil {
		s.close()
	}
	return nil
}

// session returns the child that lives, or starts one.
func (m *Mounter) session(ctx context.Context) (*session, error) {
	if ctx.Err() != nil {
		return nil, ladder.Ended(ctx)
	}
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return nil, ladder.Ended(ctx)
	}
	m.mu.Lock()
	s, closed := m.current, m.closed
	m.mu.Unlock()
	if closed {
		return nil, ErrChildEnded
	}
	if s != nil {
		select {
		case <-s.gone:
			m.config.logger().WarnContext(ctx, ErrChildEnded.Error()+"; another one is started")
		default:
			return s, nil
		}
	}
	s, err := begin(ctx, m.config)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		go s.close()
		return nil, ErrChildEnded
	}
	m.current = s
	return s, nil
}

// ask is for questions that change nothing.
func (m *Mounter) ask(q question) (answer, error) {
	ctx := context.Background()
	s, err := m.session(ctx)
	if err != nil {
		return answer{}, err
	}
	a, err := s.ask(ctx, q, nil)
	if err != nil {
		return a, err
	}
	return a, a.Failed.received(ctx)
}

// MountContext implements [mount.ContextMounter], as [host.Mounter.MountContext] on the
// host. A source that is a descriptor of this process is looked for on the host, and is
// [mount.ErrNoSource] if the host has something else at its path.
func (m *Mounter) MountContext(ctx context.Context, r mount.Request) error {
	return m.mount(ctx, question{Op: opMount, Request: r})
}

func (m *Mounter) mount(ctx context.Context, q question) error {
	r := q.Request
	var file *os.File
	if mountopt.IsDescriptor(r.Source) {
		var err error
		if file, q.Path, err = opened(r.Source); err != nil {
			return r.NotBegun(err)
		}
		defer file.Close()
	}
	s, err := m.session(ctx)
	if err != nil {
		return r.NotBegun(err)
	}
	a, err := s.ask(ctx, q, file)
	if err != nil {
		return uncertain(err, mount.Error{Op: mount.OpMount, Source: r.Source, Target: r.Target, FSType: r.FSType, Options: r.MaskedOptions()})
	}
	return a.Failed.received(ctx)
}

// opened opens what a link of /proc stands for, and tells its path.
func opened(descriptor string) (*os.File, string, error) {
	fd, err := eintr.Get(func() (int, error) { return unix.Open(descriptor, unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, "", failure.Of(mount.ErrNoSource, &os.PathError{Op: "open", Path: descriptor, Err: err})
	}
	file := os.NewFile(uintptr(fd), descriptor)
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil && !filepath.IsAbs(path) {
		err = fmt.Errorf("%s has no path: %q", descriptor, path)
	}
	if err != nil {
		file.Close()
		return nil, "", err
	}
	return file, path, nil
}

// UnmountContext implements [mount.ContextMounter], as [host.Mounter.UnmountContext] on the
// host.
func (m *Mounter) UnmountContext(ctx context.Context, target string, options mount.UnmountOptions) (mount.Rung, error) {
	s, err := m.session(ctx)
	if err != nil {
		return mount.RungNone, mount.Certain(mount.UnmountFailed(target, err))
	}
	a, err := s.ask(ctx, question{Op: opUnmount, Path: target, Options: options}, nil)
	if err != nil {
		return mount.RungNormal, uncertain(err, mount.Error{Op: mount.OpUnmount, Target: target})
	}
	return a.Rung, a.Failed.received(ctx)
}

// Mount implements [mount.Interface]; it waits without limit.
func (m *Mounter) Mount(source, target, fstype string, options []string) error {
	return m.MountSensitive(source, target, fstype, options, nil)
}

// MountSensitive implements [mount.Interface]; it waits without limit.
func (m *Mounter) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	return m.MountContext(context.Background(), mount.Request{Source: source, Target: target, FSType: fstype, Options: options, Sensitive: sensitive})
}

// MountSensitiveWithoutSystemd implements [mount.Interface]; it waits without limit.
func (m *Mounter) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return m.MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype, options, sensitive, nil)
}

// MountSensitiveWithoutSystemdWithMountFlags implements [mount.Interface]; it waits without
// limit.
func (m *Mounter) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, flags []string) error {
	r := mount.Request{Source: source, Target: target, FSType: fstype, Options: options, Sensitive: sensitive}
	return m.mount(context.Background(), question{Op: opMountBy, Request: r, Flags: flags})
}

// Unmount implements [mount.Interface]: the normal rung, without limit of time.
func (m *Mounter) Unmount(target string) error {
	_, err := m.UnmountContext(context.Background(), target, mount.UnmountOptions{})
	return err
}

// UnmountWithForce implements mount-utils' MounterForceUnmounter, as [host.Mounter] does.
func (m *Mounter) UnmountWithForce(target string, timeout time.Duration) error {
	_, err := m.UnmountContext(context.Background(), target, mount.UnmountOptions{ForceAfter: max(timeout, time.Millisecond)})
	return err
}

// CanSafelySkipMountPointCheck implements [mount.Interface]; it is false.
func (*Mounter) CanSafelySkipMountPointCheck() bool { return false }

// List implements [mount.Interface]: the host's mounts.
func (m *Mounter) List() ([]mount.MountPoint, error) {
	a, err := m.ask(question{Op: opList})
	return a.Points, err
}

// IsMountPoint implements [mount.Interface], on the host.
func (m *Mounter) IsMountPoint(file string) (bool, error) {
	a, err := m.ask(question{Op: opPoint, Path: file})
	return a.Found, err
}

// IsLikelyNotMountPoint implements [mount.Interface]: the contrary of IsMountPoint.
func (m *Mounter) IsLikelyNotMountPoint(file string) (bool, error) {
	mounted, err := m.IsMountPoint(file)
	return !mounted, err
}

// GetMountRefs implements [mount.Interface], on the host.
func (m *Mounter) GetMountRefs(pathname string) ([]string, error) {
	a, err := m.ask(question{Op: opRefs, Path: pathname})
	return a.Paths, err
}

// Table returns the mount table of the host's namespace.
func (m *Mounter) Table() mount.Table { return m.mounts }

// CheckPropagation implements [propagation.Checker]: mounts of the host below dir must
// reach this process, at the same path.
func (m *Mounter) CheckPropagation(dir string) (*propagation.Warning, error) {
	s, err := m.session(context.Background())
	if err != nil {
		return nil, err
	}
	if ours, err := os.Readlink("/proc/self/ns/mnt"); err == nil && ours == s.namespace {
		return propagation.Check(m.own, dir) // process 1 is in this namespace, too
	}
	return propagation.CheckInward(m.own, m.mounts, dir)
}

var (
	_ mount.ContextMounter           = (*Mounter)(nil)
	_ k8smount.MounterForceUnmounter = (*Mounter)(nil)
	_ table.Tabler                   = (*Mounter)(nil)
	_ propagation.Checker            = (*Mounter)(nil)
)
