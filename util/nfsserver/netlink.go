package nfsserver

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// request is one message of rtnetlink(7): a header that depends on its kind,
// and attributes.
type request struct {
	kind, flags uint16
	body        []byte
}

func newRequest(kind, flags uint16, header any) *request {
	r := &request{kind: kind, flags: flags}
	r.put(header)
	return r
}

func (r *request) put(value any) {
	body, err := binary.Append(r.body, binary.NativeEndian, value)
	if err != nil {
		panic(err) // a mistake of this package: a value without a fixed size
	}
	r.body = body
}

// attribute adds one with a value, and whatever inner adds.
func (r *request) attribute(kind uint16, value any, inner ...func()) {
	start := len(r.body)
	r.put([2]uint16{0, kind})
	if value != nil {
		r.put(value)
	}
	for _, add := range inner {
		add()
	}
	binary.NativeEndian.PutUint16(r.body[start:], uint16(len(r.body)-start))
	for len(r.body)%4 != 0 {
		r.body = append(r.body, 0)
	}
}

func (r *request) text(kind uint16, value string) { r.attribute(kind, append([]byte(value), 0)) }

// send has the network namespace of the calling thread carry a request out.
func (r *request) send() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	header := unix.NlMsghdr{Len: uint32(unix.SizeofNlMsghdr + len(r.body)), Type: r.kind, Flags: r.flags | unix.NLM_F_REQUEST | unix.NLM_F_ACK}
	message, err := binary.Append(nil, binary.NativeEndian, header)
	if err != nil {
		return err
	}
	if err := unix.Sendto(fd, append(message, r.body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 {
		return fmt.Errorf("rtnetlink answers with %d bytes", n)
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// hardware is an Ethernet address.
type hardware [6]byte

// pairPeer is VETH_INFO_PEER of the kernel's linux/veth.h.
const pairPeer = 1

// addPair makes a pair of connected interfaces (veth(4)), here and in the
// network namespace peerNS.
func addPair(name string, address hardware, peerName string, peerAddress hardware, peerNS int) error {
	r := newRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, unix.IfInfomsg{})
	r.text(unix.IFLA_IFNAME, name)
	r.attribute(unix.IFLA_ADDRESS, address)
	r.attribute(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, nil, func() {
		r.text(unix.IFLA_INFO_KIND, "veth")
		r.attribute(unix.IFLA_INFO_DATA|unix.NLA_F_NESTED, nil, func() {
			r.attribute(pairPeer|unix.NLA_F_NESTED, unix.IfInfomsg{}, func() {
				r.text(unix.IFLA_IFNAME, peerName)
				r.attribute(unix.IFLA_ADDRESS, peerAddress)
				r.attribute(unix.IFLA_NET_NS_FD, uint32(peerNS))
			})
		})
	})
	return r.send()
}

// removePair removes an interface with the one it is connected to.
func removePair(name string) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	return newRequest(unix.RTM_DELLINK, 0, unix.IfInfomsg{Index: int32(link.Index)}).send()
}

// setUp takes an interface into use.
func setUp(name string) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	return newRequest(unix.RTM_NEWLINK, 0, unix.IfInfomsg{Index: int32(link.Index), Flags: unix.IFF_UP, Change: unix.IFF_UP}).send()
}

// addAddress gives an interface an address that is good at once.
func addAddress(name string, prefix netip.Prefix) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	header := unix.IfAddrmsg{Family: family(prefix.Addr()), Prefixlen: uint8(prefix.Bits()), Flags: unix.IFA_F_NODAD, Index: uint32(link.Index)}
	r := newRequest(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header)
	r.attribute(unix.IFA_LOCAL, prefix.Addr().AsSlice())
	r.attribute(unix.IFA_ADDRESS, prefix.Addr().AsSlice())
	return r.send()
}

// addNeighbour says for ever which interface has an address, so that nobody
// asks: without an answer a server would be unreachable and not just silent.
func addNeighbour(name string, address netip.Addr, at hardware) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	header := unix.NdMsg{Family: family(address), Ifindex: int32(link.Index), State: unix.NUD_PERMANENT}
	r := newRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, header)
	r.attribute(unix.NDA_DST, address.AsSlice())
	r.attribute(unix.NDA_LLADDR, at)
	return r.send()
}

// qdiscHeader is struct tcmsg, and emulation struct tc_netem_qopt, of the
// kernel's linux/rtnetlink.h and linux/pkt_sched.h.
type qdiscHeader struct {
	Family       uint8
	_            [3]uint8
	Index        int32
	Handle       uint32
	Parent, Info uint32
}

type emulation struct{ Latency, Limit, Loss, Gap, Duplicate, Jitter uint32 }

const (
	qdiscRoot = 1<<32 - 1 // TC_H_ROOT
	tick      = 64        // nanoseconds of the scheduler's clock
	everyOne  = 1<<32 - 1 // the probability 1
)

// emulate has what is sent through an interface delayed, or lost (netem(8)).
func emulate(name string, delay time.Duration, lost bool) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	options := emulation{Latency: uint32(delay.Nanoseconds() / tick), Limit: 10000}
	if lost {
		options.Loss = everyOne
	}
	r := newRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, qdiscHeader{Index: int32(link.Index), Parent: qdiscRoot})
	r.text(unix.TCA_KIND, "netem")
	r.attribute(unix.TCA_OPTIONS, options)
	return r.send()
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}
