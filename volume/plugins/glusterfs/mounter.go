package glusterfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/lazyunmount"
)

const (
	fsType      = "glusterfs"
	autoUnmount = "auto_unmount"
	// aliveness is how long a set-up waits for the file system of a mount that is there to
	// say that its client is dead, which the kernel says at once.
	aliveness = time.Second
)

// client is what mounter and unmounter have in common.
type client struct {
	volume.PodVolume
	plugin *plugin
}

// GetMetrics returns the metrics of the Gluster volume. Where the client is dead, hangs, or
// reaches no server, the error is a *[meter.Error], for one that hangs when ctx ends.
func (c *client) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	c.boundLog()
	metrics, err := podmount.Metrics(ctx, c.Host.GetMounter(), &c.plugin.meter, c.GetPath())
	switch {
	case c.isDead(c.GetPath(), err):
		err = fmt.Errorf("the volume's client process is dead: delete the pod and make it anew: %w", err)
	case errors.Is(err, unix.ENOTCONN):
		err = fmt.Errorf("the volume's client does not reach its servers, and goes on once it does: %w", err)
	}
	return metrics, c.Error("GetMetrics", err)
}

// isDead reports whether the client of a mount has ended, by the error of a question to it.
// The kernel's error is also that of a client whose servers are away, which has a process.
func (c *client) isDead(dir string, err error) bool {
	if !errors.Is(err, unix.ENOTCONN) {
		return false
	}
	clients, findErr := findClients(dir)
	for _, p := range clients {
		unix.Close(p.fd)
	}
	return findErr == nil && !slices.ContainsFunc(clients, process.serves)
}

type mounter struct {
	client
	source
	options  []string
	readOnly bool
}

// check refuses a mounter's names that the helper would take for something else.
func (m *mounter) check() error {
	if err := m.source.check(); err != nil {
		return err
	}
	for _, path := range []string{m.GetPath(), m.logFile()} {
		if !isPlain(path) {
			return volume.Invalid("name", "the mount helper of GlusterFS cannot take the path %q: the volume's name, the pod's UID and the root directory must be of letters, digits and ._~/:@=+- only", path)
		}
	}
	return nil
}

// GetAttributes reports Managed false, as for nfs: supplementalGroups give a pod access.
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.isReadOnly()}
}

func (m *mounter) isReadOnly() bool { return m.readOnly || slices.Contains(m.options, "ro") }

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

func (m *mounter) SetUpAt(ctx context.Context, dir string, _ volume.MounterArgs) error {
	return m.Error("SetUp", m.setUp(ctx, dir))
}

func (m *mounter) setUp(ctx context.Context, dir string) error {
	request := mount.Request{Source: m.path, Target: dir, FSType: fsType}
	mounted, err := podmount.Mounted(m.Host.GetMounter(), request, m.isMounted)
	if err != nil {
		return err
	}
	if mounted && !m.isDead(dir, m.ask(ctx, dir)) {
		m.boundLog()
		return nil
	}
	servers, err := m.servers(ctx, m.Host)
	if err != nil {
		return err
	}
	if err := m.clear(ctx, dir); err != nil {
		return err
	}
	request.Source, request.Options = servers[0]+":"+m.path, m.mountOptions(servers)
	return m.mount(ctx, request)
}

// isMounted reports whether the entry is this volume. A writable mount is not what a
// read-only volume asked for.
func (m *mounter) isMounted(e mount.Entry) bool {
	return m.isVolume(e) && (e.ReadOnly() || !m.readOnly)
}

// ask returns the error of a question to a mount's client, which may hang.
func (m *mounter) ask(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, aliveness)
	defer cancel()
	_, err := m.plugin.meter.FileSystem(ctx, dir)
	return err
}

// clear ends what clients are left where none is mounted, one of which could still mount, and
// takes away a mount that no client serves. It is as good if such a mount can only be detached.
func (m *mounter) clear(ctx context.Context, dir string) error {
	if real := realPath(dir); !isPlain(real) {
		return volume.NothingDone(volume.Invalid("dir", "the mount helper of GlusterFS cannot take the path %q", real))
	}
	if err := m.endClients(ctx, dir, settling); err != nil {
		return volume.NothingDone(err)
	}
	err := podmount.UnmountAll(ctx, m.Host.GetMounter(), dir, mount.UnmountOptions{LazyAfter: aliveness})
	if _, detached := errors.AsType[*lazyunmount.Error](err); detached {
		return nil
	}
	return err
}

// maxServers are those that the helper is told of: one that answers is enough, and an argument
// has an end.
const maxServers = 32

// mountOptions are Kubernetes' own, where the PersistentVolume has not set them.
func (m *mounter) mountOptions(servers []string) []string {
	options := slices.Clone(m.options)
	add := func(name, value string) {
		has := func(o string) bool { return o == name || strings.HasPrefix(o, name+"=") }
		if value != "" && !slices.ContainsFunc(m.options, has) {
			options = append(options, name+"="+value)
		}
	}
	var others []string
	for _, s := range servers[1:min(len(servers), maxServers)] {
		if strings.Contains(s, ":") {
			s = "[" + s + "]"
		}
		others = append(others, s)
	}
	add("backup-volfile-servers", strings.Join(others, ":"))
	add("log-level", "ERROR")
	add("log-file", m.logFile())
	return options
}

// mount starts a client, and leaves none if that fails.
func (m *mounter) mount(ctx context.Context, request mount.Request) error {
	if err := m.makeLog(); err != nil {
		return volume.NothingDone(err)
	}
	_, err := podmount.SetUpBy(ctx, m.Host.GetMounter(), request, m.isMounted, func() error { return m.start(ctx, request) })
	if err == nil {
		return nil
	}
	says := m.endOfLog()
	if endErr := m.endClients(context.WithoutCancel(ctx), request.Target, 0); endErr != nil {
		return fmt.Errorf("%w; and %w", err, endErr)
	}
	if removeErr := m.removeLog(); removeErr != nil {
		return fmt.Errorf("%w; and %w", err, removeErr)
	}
	if says != "" {
		return fmt.Errorf("%w\nthe client's log: %s", err, says)
	}
	return err
}

// start mounts by a client that unmounts when it dies, or else by one that cannot.
func (m *mounter) start(ctx context.Context, request mount.Request) error {
	able := request
	able.Options = request.Options
	if !slices.Contains(request.Options, autoUnmount) {
		able.Options = append(slices.Clone(request.Options), autoUnmount)
	}
	err := mount.Mount(ctx, m.Host.GetMounter(), able)
	if e, ok := errors.AsType[*mount.Error](err); ok && !e.Uncertain && isUnknownOption(e.Output, autoUnmount) {
		return mount.Mount(ctx, m.Host.GetMounter(), request)
	}
	return err
}

type unmounter struct{ client }

func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	return u.Error("TearDown", u.tearDown(ctx, dir))
}

// tearDown kills the client where the mount had to be detached: that ends the file system
// for the processes that still use it, and so the volume's teardown.
func (u *unmounter) tearDown(ctx context.Context, dir string) error {
	err := podmount.TearDown(ctx, u.Host.GetMounter(), dir, u.plugin.ladder())
	patience := flushing
	if _, detached := errors.AsType[*lazyunmount.Error](err); detached {
		patience = 0
	} else if err != nil {
		return err
	}
	if endErr := u.endClients(ctx, dir, patience); endErr != nil {
		return errors.Join(err, endErr)
	}
	return errors.Join(err, u.removeLog())
}
