package nfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// preflight finds where a version's services are at an address and makes sure
// that they answer.
func (c *Client) preflight(ctx context.Context, s Source, o Options, major int, address netip.Addr) (endpoints, error) {
	e := endpoints{address: address}
	if err := c.preflightNFS(ctx, o, major, &e); err != nil {
		return e, err
	}
	if major == 4 {
		if e.local = o.ClientAddress; !e.local.IsValid() {
			e.local = localAddress(ctx, address)
		}
		return e, nil
	}
	if err := c.preflightMount(ctx, s, o, &e); err != nil {
		return e, err
	}
	if o.LocalLocks {
		return e, nil
	}
	return e, c.checkStatd(ctx)
}

func (c *Client) preflightNFS(ctx context.Context, o Options, major int, e *endpoints) (err error) {
	if o.Port != nil {
		e.port = *o.Port
	}
	if o.Transport.Protocol == "rdma" {
		return nil // there is nothing that could be asked
	}
	switch {
	case e.port != 0:
	case o.Port == nil && major == 4:
		e.port = defaultPort
	default:
		if e.port, err = c.portOf(ctx, e.address, programNFS, uint32(major), o.Transport.Protocol); err != nil {
			return err
		}
	}
	return null(ctx, o.Transport.Protocol, netip.AddrPortFrom(e.address, e.port), programNFS, uint32(major))
}

// preflightMount finds the server's mountd.
func (c *Client) preflightMount(ctx context.Context, s Source, o Options, e *endpoints) (err error) {
	if e.mountAddress, err = c.mountAddress(ctx, s, o, e.address); err != nil {
		return err
	}
	version := uint32(o.mountVersion()[0] - '0')
	for _, protocol := range o.mountProtocols() {
		e.mountProtocol = protocol
		if o.MountPort != nil && *o.MountPort != 0 {
			e.mountPort = *o.MountPort
			break
		}
		e.mountPort, err = c.portOf(ctx, e.mountAddress, programMount, version, protocol)
		if _, ok := errors.AsType[*notRegisteredError](err); !ok {
			break
		}
	}
	if err != nil {
		return err
	}
	return null(ctx, e.mountProtocol, netip.AddrPortFrom(e.mountAddress, e.mountPort), programMount, version)
}

// mountProtocols are those over which mountd may be asked, best first.
func (o Options) mountProtocols() []string {
	switch {
	case o.MountTransport.Protocol != "":
		return []string{o.MountTransport.Protocol}
	case o.Transport.Protocol == "udp":
		return []string{"udp", "tcp"}
	}
	return []string{"tcp", "udp"}
}

// mountAddress is where mountd is: on the server itself unless an option names
// another host or another family of addresses.
func (c *Client) mountAddress(ctx context.Context, s Source, o Options, server netip.Addr) (netip.Addr, error) {
	if o.MountAddress.IsValid() {
		return o.MountAddress, nil
	}
	if o.MountHost == "" && o.MountTransport.fits(server) {
		return server, nil
	}
	host := o.MountHost
	if host == "" {
		host = s.Host
	}
	found, err := c.resolve(ctx, host, o.MountTransport)
	if err != nil {
		return netip.Addr{}, err
	}
	return found[0], nil
}

// Resolver looks up host names, as [net.Resolver] does.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Client talks to NFS servers before they are mounted. Its fields are not
// changed while it is used; it is then safe for concurrent use.
type Client struct {
	// Resolver turns names into addresses.
	Resolver Resolver
	// RPCBindPort is where rpcbind listens, here and on servers; 0 means 111.
	RPCBindPort uint16
}

func (c *Client) rpcbindPort() uint16 { return cmp.Or(c.RPCBindPort, portmapPort) }

// resolve returns the addresses of a host that fit, in the resolver's order. An
// address is its own. Errors are *[ResolveError]s.
func (c *Client) resolve(ctx context.Context, host string, t Transport) ([]netip.Addr, error) {
	found := []netip.Addr{}
	if literal, err := netip.ParseAddr(host); err == nil {
		found = append(found, literal)
	} else if found, err = c.Resolver.LookupNetIP(ctx, t.network(), host); err != nil {
		return nil, &ResolveError{host, err}
	}
	var usable []netip.Addr
	for _, a := range found {
		if a = a.Unmap(); t.fits(a) && !slices.Contains(usable, a) {
			usable = append(usable, a)
		}
	}
	if len(usable) == 0 {
		return nil, &ResolveError{host, fmt.Errorf("it has no address for proto=%s", t)}
	}
	return usable, nil
}

// localAddress is this node's address towards a server, where the server of
// NFSv4.0 calls back; it is invalid where there is no route.
func localAddress(ctx context.Context, server netip.Addr) netip.Addr {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "udp", netip.AddrPortFrom(server, defaultPort).String()) // sends nothing
	if err != nil {
		return netip.Addr{}
	}
	defer conn.Close()
	if local, ok := conn.LocalAddr().(*net.UDPAddr); ok {
		return local.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// null calls the procedure that does nothing, to see that a service is there
// and speaks a version.
func null(ctx context.Context, network string, server netip.AddrPort, p program, version uint32) error {
	_, err := call{network: network, server: server, program: p, version: version, procedure: procNull}.do(ctx)
	if _, ok := errors.AsType[*rejectedError](err); ok {
		return nil // it wants credentials, or the like: the kernel has them
	}
	return err
}

const (
	// statdPatience is how long a daemon on this node may take to answer.
	statdPatience = 5 * time.Second
	statdVersion  = 1
)

// checkStatd makes sure that locks over NFSv3 can work: the kernel's lock
// client registers with the rpc.statd of this node, over TCP on the loopback
// address (fs/lockd/mon.c). Errors are *[StatdError], or ctx's.
func (c *Client) checkStatd(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, statdPatience)
	defer cancel()
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	port, err := c.portOf(bounded, loopback, programStatd, statdVersion, "tcp")
	if err == nil {
		err = null(bounded, "tcp", netip.AddrPortFrom(loopback, port), programStatd, statdVersion)
	}
	if err == nil || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &StatdError{err}
}

const (
	// portmapPort is where rpcbind listens.
	portmapPort = 111

	portmapVersion = 2 // knows IPv4 only
	portmapGetPort = 3
	rpcbindVersion = 4
	rpcbindGetAddr = 3

	ipprotoTCP = 6
	ipprotoUDP = 17
)

// notRegisteredError is a service that rpcbind does not know.
type notRegisteredError struct {
	program  program
	version  uint32
	protocol string
}

func (e *notRegisteredError) Error() string {
	return fmt.Sprintf("rpcbind knows no %s of version %d over %s", e.program, e.version, e.protocol)
}

// portOf asks rpcbind on address for a service's port: over TCP, and over UDP
// where TCP is refused. Errors are *[ReachError]s and *notRegisteredError.
func (c *Client) portOf(ctx context.Context, address netip.Addr, p program, version uint32, protocol string) (uint16, error) {
	port, err := c.askPortOf(ctx, "tcp", address, p, version, protocol)
	if reach, ok := errors.AsType[*ReachError](err); ok && !reach.Timeout() && ctx.Err() == nil {
		if port, udpErr := c.askPortOf(ctx, "udp", address, p, version, protocol); udpErr == nil {
			return port, nil
		}
	}
	return port, err
}

func (c *Client) askPortOf(ctx context.Context, network string, address netip.Addr, p program, version uint32, protocol string) (uint16, error) {
	ask := call{network: network, server: netip.AddrPortFrom(address, c.rpcbindPort()), program: programPortmap}
	read := readPort
	if address.Is4() {
		number := uint32(ipprotoTCP)
		if protocol == "udp" {
			number = ipprotoUDP
		}
		ask.version, ask.procedure = portmapVersion, portmapGetPort
		ask.arguments = appendUint32(nil, uint32(p), version, number, 0)
	} else {
		read = readUniversalAddress
		ask.version, ask.procedure = rpcbindVersion, rpcbindGetAddr
		ask.arguments = appendUint32(nil, uint32(p), version)
		for _, s := range []string{netid(protocol, address), "", ""} { // any address, any owner
			ask.arguments = appendString(ask.arguments, s)
		}
	}
	results, err := ask.do(ctx)
	if err != nil {
		return 0, err
	}
	port, err := read(results)
	if err == nil && port == 0 {
		err = &notRegisteredError{p, version, netid(protocol, address)}
	}
	return port, err
}

func readPort(results []byte) (uint16, error) {
	r := reader{left: results}
	port := r.uint32()
	if port > 0xffff {
		return 0, fmt.Errorf("rpcbind answers with the port %d", port)
	}
	return uint16(port), r.err()
}

// readUniversalAddress reads the port at the end of an address such as
// "::.8.1"; an empty one is a service that is not registered.
func readUniversalAddress(results []byte) (uint16, error) {
	r := reader{left: results}
	text := string(r.bytes())
	if r.bad || text == "" {
		return 0, r.err()
	}
	parts := strings.Split(text, ".")
	var port uint64
	for _, part := range parts[max(0, len(parts)-2):] {
		n, err := strconv.ParseUint(part, 10, 8)
		if err != nil || len(parts) < 3 {
			return 0, fmt.Errorf("rpcbind answers with the address %q", text)
		}
		port = port<<8 | n
	}
	return uint16(port), nil
}
