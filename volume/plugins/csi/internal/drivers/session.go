package drivers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
)

// Session is one connection of a driver, with the driver's capabilities while it lives: a driver
// that was restarted may be of another version.
type Session struct {
	Conn *grpc.ClientConn
	// Node is the Node service.
	Node    csi.NodeClient
	driver  *Driver
	version string
	can     []csi.NodeServiceCapability_RPC_Type
	asking  chan struct{} // holds a value while known is asked for
	known   *Controls     // nil: not asked yet
}

// Has reports whether the Node service offers a call.
func (s *Session) Has(c csi.NodeServiceCapability_RPC_Type) bool { return slices.Contains(s.can, c) }

// isReady reports whether a call needs no new connection.
func (s *Session) isReady() bool { return s != nil && s.Conn.GetState() == connectivity.Ready }

// connect opens a session. Its errors say that no call that changes anything was sent.
func connect(ctx context.Context, d *Driver) (*Session, error) {
	s, err := open(ctx, d)
	if err != nil {
		return nil, unreachable(d.Name, d.Socket, err)
	}
	if err := s.learn(ctx, d); err != nil {
		s.Conn.Close()
		return nil, err
	}
	return s, nil
}

// open waits until the driver at the socket has greeted. It asks it nothing.
func open(ctx context.Context, d *Driver) (*Session, error) {
	var refused atomic.Pointer[error] // of the dial
	var accepted, heard atomic.Bool
	conn, err := grpc.NewClient("passthrough:///csi",
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0), grpc.WithDisableRetry(), grpc.WithUnaryInterceptor(d.measured),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := d.set.config.Dial(ctx, d.Socket)
			if err != nil {
				refused.Store(&err)
				return nil, err
			}
			accepted.Store(true)
			return &heardConn{c, &heard}, nil
		}))
	if err != nil {
		return nil, err
	}
	s := &Session{driver: d, Conn: conn, Node: csi.NewNodeClient(conn), asking: make(chan struct{}, 1)}
	if err := s.await(ctx); err != nil {
		conn.Close()
		if why := refused.Load(); why != nil {
			err = *why
		}
		return nil, d.silent(accepted.Load() && !heard.Load(), err)
	}
	return s, d.silent(false, nil)
}

// heardConn notes that something came from the other end, if only its end.
type heardConn struct {
	net.Conn
	heard *atomic.Bool
}

func (c *heardConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 || errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		c.heard.Store(true)
	}
	return n, err
}

// Write notes an end that was there before anything was read.
func (c *heardConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		c.heard.Store(true)
	}
	return n, err
}

// silenceError is of a socket that takes connections, and of which nothing is heard. Since is
// when that was seen first.
type silenceError struct {
	since time.Time
	err   error
}

func (e *silenceError) Error() string {
	return "it takes connections and has answered nothing since " + e.since.Format(time.DateTime)
}

func (e *silenceError) Unwrap() error { return e.err }

// silent notes whether a connection was taken and nothing was heard, and says it in the error.
func (d *Driver) silent(is bool, err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !is:
		d.silentSince = time.Time{}
		return err
	case d.silentSince.IsZero():
		d.silentSince = time.Now()
	}
	return &silenceError{d.silentSince, err}
}

// adviceFor says what a user can do about a socket at which no driver greets.
func adviceFor(err error) string {
	if _, hangs := errors.AsType[*silenceError](err); hangs {
		return "it hangs or is stopped: see its process and its log"
	}
	if errors.Is(err, fs.ErrPermission) {
		return "run this as root, or as the user whose socket it is"
	}
	return "see whether the driver runs on this node"
}

// AskName returns the name of the driver at a socket. Whoever serves the socket chooses it, so
// that the socket must be of this process's user or root's, and not everybody's.
func AskName(ctx context.Context, socket string) (string, error) {
	name, err := askName(ctx, socket)
	if err == nil {
		return name, nil
	}
	return "", &volume.Failure{Cause: ErrUnreachable, Subject: socket, Err: err,
		What: fmt.Sprintf("no CSI driver says its name at %s: %s", Shown(socket), Redact(err.Error(), nil)),
		Next: adviceFor(err) + ", or give its name with the socket"}
}

func askName(ctx context.Context, socket string) (string, error) {
	if err := checkSocket(socket); err != nil {
		return "", err
	}
	s, err := open(ctx, NewSet(Config{Dial: dialUnix}).newDriver("", socket, true))
	if err != nil {
		return "", err
	}
	defer s.Conn.Close()
	info, err := csi.NewIdentityClient(s.Conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return "", endedWith(ctx, err)
	}
	return info.GetName(), csivolume.CheckDriverName("GetPluginInfo", info.GetName())
}

// await waits until the connection is there, which is when the driver has greeted.
func (s *Session) await(ctx context.Context) error {
	s.Conn.Connect()
	for state := s.Conn.GetState(); state != connectivity.Ready; state = s.Conn.GetState() {
		if state == connectivity.TransientFailure || state == connectivity.Shutdown {
			return errNoGreeting
		}
		if !s.Conn.WaitForStateChange(ctx, state) {
			return context.Cause(ctx)
		}
	}
	return nil
}

var errNoGreeting = errors.New("nothing there speaks gRPC")

// learn asks what the driver can do, and of a fixed socket who it is.
func (s *Session) learn(ctx context.Context, d *Driver) error {
	info, err := csi.NewIdentityClient(s.Conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	switch code := status.Code(err); {
	case err == nil:
		s.version = info.GetVendorVersion()
	case code == codes.DeadlineExceeded || code == codes.Canceled || code == codes.Unimplemented:
		return d.set.failedCall("GetPluginInfo", d.Name, "", err)
	} // others are of drivers that do not know their version, and work
	if d.Fixed && err == nil && info.GetName() != d.Name {
		return &volume.Failure{Cause: ErrOtherDriver, Subject: d.Name,
			What: fmt.Sprintf("the driver at the socket of %s says that it is %.80q", d.Name, info.GetName()),
			Next: "give the socket with the name that its driver has"}
	}
	can, err := s.Node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return d.set.failedCall("NodeGetCapabilities", d.Name, "", err)
	}
	for _, c := range can.GetCapabilities() {
		s.can = append(s.can, c.GetRpc().GetType())
	}
	return nil
}

func unreachable(name, socket string, err error) error {
	return &volume.Failure{Cause: ErrUnreachable, Subject: name, Err: err,
		What: fmt.Sprintf("driver %s does not answer at %s: %s", name, Shown(socket), Redact(err.Error(), nil)),
		Next: adviceFor(err)}
}
