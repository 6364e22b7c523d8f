package nfs

import (
	"context"
	"errors"
	"net/netip"
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
