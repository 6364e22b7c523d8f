package nfs

import "net/netip"

// Transport is how a service is reached.
type Transport struct {
	// Protocol is "tcp", "udp" or "rdma".
	Protocol string
	// Family is 4 or 6 where the option says so, else 0.
	Family int
}

// parseTransport reads the value of proto= or mountproto=. As in nfs(5), the
// plain names stand for IPv4.
func parseTransport(option, value string) (Transport, error) {
	switch value {
	case "tcp", "udp", "rdma":
		return Transport{value, 4}, nil
	case "tcp6", "udp6", "rdma6":
		return Transport{value[:len(value)-1], 6}, nil
	}
	return Transport{}, &OptionError{option, "it is none of tcp, tcp6, udp, udp6, rdma, rdma6"}
}

// fits reports whether an address can be used.
func (t Transport) fits(a netip.Addr) bool {
	return t.Family == 0 || t.Family == 4 == a.Is4()
}

// network is the word of a resolver for the addresses that fit.
func (t Transport) network() string {
	switch t.Family {
	case 4:
		return "ip4"
	case 6:
		return "ip6"
	}
	return "ip"
}

// netid is the kernel's and rpcbind's word for a protocol to an address.
func netid(protocol string, a netip.Addr) string {
	if a.Is4() {
		return protocol
	}
	return protocol + "6"
}

// String is the transport as the option proto= has it.
func (t Transport) String() string {
	if t.Family == 6 {
		return t.Protocol + "6"
	}
	return t.Protocol
}
