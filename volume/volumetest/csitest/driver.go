package csitest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume/internal/work"
)

// DefaultName is the name of a driver without another one.
const DefaultName = "csitest.podvol.io"

// Disk is a kind of volume.
type Disk string

const (
	// Directory is a directory that is bound to its places. It needs no device, works
	// on a fake mounter and cannot be a block volume. Its size is not enforced.
	Directory Disk = "directory"
	// Loop is an image file on a loop device. It needs root.
	Loop Disk = "loop"
	// File is an image file that is published as it is, in the place of a block
	// device. It is for callers whose mounter is a fake.
	File Disk = "file"
)

// Config describes a driver.
type Config struct {
	// Name is the driver's name; empty: [DefaultName].
	Name string
	// Version is the driver's own version; empty: "1.0.0".
	Version string
	// NodeID is the node's name as the driver knows it; empty: "node1". [Driver.StartNode]
	// adds nodes.
	NodeID string
	// Dir holds the volumes. The driver makes it. It must be of this driver alone.
	Dir string
	// Mounter makes the mounts; nil: host.New(host.Config{}).
	Mounter mount.Interface
	// Disk is the kind of volumes whose context and parameters name no other by the
	// key "disk"; empty: [Directory].
	Disk Disk
	// BlockDisk is the kind of volumes that CreateVolume makes for a caller who wants a
	// block volume, and names no other; empty: Disk.
	BlockDisk Disk
	// Mutable are the names of mutable parameters; nil: iops and throughput, the names that
	// some storage has. Their values mean nothing here.
	Mutable []string
	// CreateOnUse makes a volume when the node is asked for an unknown one, as if
	// somebody had created it before. Else an unknown volume is NotFound.
	CreateOnUse bool
	// ExpandOnNode has ControllerExpandVolume ask for the node's part also where a volume has
	// no file system that must grow.
	ExpandOnNode bool
	// Capabilities are the optional abilities of the driver.
	Capabilities Capabilities
	// MaxVolumesPerNode and Topology are told by NodeGetInfo. ControllerPublishVolume
	// keeps the limit.
	MaxVolumesPerNode int64
	Topology          map[string]string
	// VolumeHealth is what is wrong with volumes, by their ids, and StorageHealth what is wrong
	// with the storage.
	VolumeHealth  map[string][]*csi.VolumeHealth_VolumeHealthEntry
	StorageHealth []*csi.NodeGetStorageHealthResponse_StorageBackendHealth
	// Misbehaviours are the faults of real drivers that this one has.
	Misbehaviours []Misbehaviour
}

// Capabilities are the optional abilities of a driver.
type Capabilities struct {
	// Controller offers the Controller service.
	Controller bool
	// Attach needs ControllerPublishVolume before a volume is used on a node.
	Attach bool
	// Stage needs NodeStageVolume before NodePublishVolume.
	Stage bool
	// Stats, Expand and Health offer NodeGetVolumeStats, the two calls that expand,
	// and the two calls of the node's health.
	Stats, Expand, Health bool
	// Condition tells a volume's health with NodeGetVolumeStats, as drivers of CSI 1.12 do: it
	// is the messages of Config.VolumeHealth.
	Condition bool
	// Clone offers volumes that begin as a copy of another.
	Clone bool
	// Modify offers ControllerModifyVolume, and mutable parameters of CreateVolume.
	Modify bool
	// SingleNodeMultiWriter knows the two access modes that tell one pod from one node.
	SingleNodeMultiWriter bool
	// VolumeMountGroup gives volumes to the group of the call.
	VolumeMountGroup bool
}

// AllCapabilities returns every ability but Attach.
func AllCapabilities() Capabilities {
	return Capabilities{Controller: true, Stage: true, Stats: true, Expand: true, Health: true, Clone: true, Modify: true, SingleNodeMultiWriter: true, VolumeMountGroup: true}
}

// Driver is one CSI driver. It outlives the servers that [Driver.Start] starts. Its
// methods are safe for concurrent use. [Driver.Close] must be called at the end.
type Driver struct {
	faults fault.Injector[Call]
	busy   work.Activity // calls, and work that goes on after its call was answered

	mu        sync.Mutex
	config    Config
	format    *format.Formatter
	servers   []*server               // of this life; the first one is of Config.NodeID
	running   map[string]*runningCall // by volume
	staged    map[string]string       // volume to path
	unstaging map[staging]bool        // volumes that were asked to be unstaged, and not to be staged since
	published map[string]string       // path to volume
	attached  map[string]string       // volume to node
	unpublish map[string]bool         // inline volumes that were unpublished once
	broken    []string                // rules that callers broke
}

// server is one life of the driver on a node.
type server struct {
	grpc   *grpc.Server
	socket string
	node   string // empty: Config.NodeID
	ended  chan struct{}
	dead   chan struct{} // closed by Kill and Stop
}

func (s *server) isDead() bool {
	select {
	case <-s.dead:
		return true
	default:
		return false
	}
}

// New returns a driver. It does no I/O.
func New(config Config) *Driver {
	d := &Driver{running: map[string]*runningCall{}, staged: map[string]string{}, unstaging: map[staging]bool{}, published: map[string]string{}, attached: map[string]string{}, unpublish: map[string]bool{}}
	d.setConfig(config)
	return d
}

func (d *Driver) setConfig(c Config) {
	c.Name, c.Version, c.NodeID = cmp.Or(c.Name, DefaultName), cmp.Or(c.Version, "1.0.0"), cmp.Or(c.NodeID, "node1")
	c.Disk = cmp.Or(c.Disk, Directory)
	c.BlockDisk = cmp.Or(c.BlockDisk, c.Disk)
	if c.Mutable == nil {
		c.Mutable = []string{"iops", "throughput"}
	}
	if c.Mounter == nil {
		c.Mounter = host.New(host.Config{})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.config, d.format = c, format.New(format.Config{Mounter: c.Mounter})
}

// Config returns the configuration with its defaults. The caller must not change what
// it points to.
func (d *Driver) Config() Config {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config
}

// Configure changes the configuration. A server that is running uses the new one from
// its next call on. Dir and Mounter must stay.
func (d *Driver) Configure(change func(*Config)) {
	c := d.Config()
	change(&c)
	d.setConfig(c)
}

// Start serves the driver on a socket until [Driver.Kill], [Driver.Stop] or
// [Driver.Close]. A socket that an earlier life left there is replaced. It fails if
// the driver is running already.
func (d *Driver) Start(socket string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.prepare(); err != nil {
		return err
	}
	return d.listen(socket, "")
}

// StartNode serves the running driver on a further node, at a socket of its own. The nodes
// share the volumes. A volume is attached to one node at a time, whatever its access mode: to
// attach it to another one is a broken rule (see [Driver.Violations]). The socket's life is
// that of the driver, and the next start does not know the node. It fails if the driver is not
// running.
func (d *Driver) StartNode(id, socket string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.servers) == 0 || d.knows(id) {
		return fmt.Errorf("the driver is not running, or has node %q already", id)
	}
	return d.listen(socket, id)
}

// knows is called with the lock held.
func (d *Driver) knows(node string) bool {
	return node == d.config.NodeID || slices.ContainsFunc(d.servers, func(s *server) bool { return s.node == node })
}

// listen is called with the lock held.
func (d *Driver) listen(socket, node string) error {
	if info, err := os.Lstat(socket); err == nil && info.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(socket); err != nil {
			return err
		}
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	listener.SetUnlinkOnClose(false) // a killed process leaves its socket
	d.serve(callers{listener}, socket, node)
	return nil
}

// Serve is Start on connections of the caller, such as those of package
// google.golang.org/grpc/test/bufconn: with them a test can have virtual time. The
// listener is closed with the driver.
func (d *Driver) Serve(listener net.Listener) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.prepare(); err != nil {
		return err
	}
	d.serve(listener, "", "")
	return nil
}

// prepare is called with the lock held.
func (d *Driver) prepare() error {
	if len(d.servers) > 0 {
		return fmt.Errorf("the driver is running already, on %q", d.servers[0].socket)
	}
	return os.MkdirAll(d.config.Dir, 0o750)
}

// serve is called with the lock held. An empty socket has no file.
func (d *Driver) serve(listener net.Listener, socket, id string) {
	s := &server{socket: socket, node: id, ended: make(chan struct{}), dead: make(chan struct{})}
	s.grpc = grpc.NewServer(grpc.UnaryInterceptor(d.intercept(s)))
	csi.RegisterIdentityServer(s.grpc, identity{d: d})
	csi.RegisterNodeServer(s.grpc, node{d: d, id: id})
	if d.config.Capabilities.Controller || d.config.Capabilities.Attach {
		csi.RegisterControllerServer(s.grpc, controller{d: d})
	}
	d.servers = append(d.servers, s)
	go func() {
		defer close(s.ended)
		_ = s.grpc.Serve(listener) // its only errors are those of the end
	}()
}

// Kill ends the driver as SIGKILL does: connections are cut, calls under way end
// without an answer, and the socket's file stays. A hook of [Fault] may call it. It
// does nothing if the driver is not running.
func (d *Driver) Kill() {
	servers := d.takeServers()
	for _, s := range servers {
		close(s.dead)
	}
	for _, s := range servers {
		s.grpc.Stop()
	}
}

// Stop lets the calls under way end, and removes the sockets. It does nothing if the
// driver is not running. It may wait for as long as a call hangs.
func (d *Driver) Stop() error {
	var errs []error
	for _, s := range d.takeServers() {
		errs = append(errs, s.stop())
	}
	return errors.Join(errs...)
}

func (s *server) stop() error {
	s.grpc.GracefulStop()
	close(s.dead)
	<-s.ended
	if s.socket == "" {
		return nil
	}
	if err := os.Remove(s.socket); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d *Driver) takeServers() []*server {
	d.mu.Lock()
	defer d.mu.Unlock()
	servers := d.servers
	d.servers = nil
	return servers
}

// Settle waits for the calls that are under way, and for work that goes on after its call was
// answered. A caller that has given up or died does not wait for that: of its call the driver
// may not even know it yet.
func (d *Driver) Settle() { <-d.busy.Idle() }

// goOn works on after a call was answered.
func (d *Driver) goOn(f func()) {
	d.busy.Add(1)
	go func() {
		defer d.busy.Add(-1)
		f()
	}()
}

// Close kills the driver, waits for its work, takes off what it had mounted, and frees
// its loop devices. Volumes stay. It may be called twice.
func (d *Driver) Close() error {
	d.Kill()
	d.Settle()
	d.mu.Lock()
	var places []string
	for place := range d.published {
		places = append(places, place)
	}
	for _, place := range d.staged {
		places = append(places, place)
	}
	c := d.config
	clear(d.published)
	clear(d.staged)
	clear(d.unstaging)
	d.mu.Unlock()
	var errs []error
	slices.Sort(places)
	for _, place := range slices.Backward(places) {
		errs = append(errs, unmountAll(context.Background(), c.Mounter, place))
	}
	return errors.Join(append(errs, detachBelow(c.Dir))...)
}

// Reboot forgets what is staged, published and attached on the node, as a reboot does.
// The caller takes the mounts off. Loop devices are freed.
func (d *Driver) Reboot() error {
	d.mu.Lock()
	clear(d.published)
	clear(d.staged)
	clear(d.unstaging)
	dir := d.config.Dir
	d.mu.Unlock()
	return detachBelow(dir)
}

// SocketDir returns a directory for sockets, which goes with the test. The paths of a test's
// own directories are too long for sockets.
func SocketDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// Dial returns a connection to a driver's socket, for the generated clients of the
// specification. It connects with the first call. The caller closes it.
func Dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
}
