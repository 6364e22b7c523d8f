package nfsserver

import (
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addPair makes a pair of connected interfaces (veth(4)), here and in the
// network namespace peerNS.
func addPair(name string, address net.HardwareAddr, peerName string, peerAddress net.HardwareAddr, peerNS int) error {
	return netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: address},
		PeerName:  peerName, PeerHardwareAddr: peerAddress, PeerNamespace: netlink.NsFd(peerNS),
	})
}

// removePair removes an interface with the one it is connected to.
func removePair(name string) error { return onLink(name, netlink.LinkDel) }

// setUp takes an interface into use.
func setUp(name string) error { return onLink(name, netlink.LinkSetUp) }

func onLink(name string, do func(netlink.Link) error) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return do(link)
}

// addAddress gives an interface an address that is good at once.
func addAddress(name string, prefix netip.Prefix) error {
	return onLink(name, func(link netlink.Link) error {
		at := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
		return netlink.AddrAdd(link, &netlink.Addr{IPNet: at, Flags: unix.IFA_F_NODAD})
	})
}

// addNeighbour says for ever which interface has an address, so that nobody
// asks: without an answer a server would be unreachable and not just silent.
func addNeighbour(name string, address netip.Addr, at net.HardwareAddr) error {
	return onLink(name, func(link netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: address.AsSlice(), HardwareAddr: at})
	})
}

// emulate has packets that are sent through an interface delayed, or lost
// (netem(8)).
func emulate(name string, delay time.Duration, lost bool) error {
	return onLink(name, func(link netlink.Link) error {
		options := netlink.NetemQdiscAttrs{Latency: uint32(delay.Microseconds()), Limit: 10000}
		if lost {
			options.Loss = 100 // percent
		}
		return netlink.QdiscReplace(netlink.NewNetem(netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT}, options))
	})
}
