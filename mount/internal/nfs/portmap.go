package nfs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

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
