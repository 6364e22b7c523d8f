package nfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

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
