package nfs

import (
	"net/netip"
	"strconv"
)

// Attempt is one file system to try to make.
type Attempt struct {
	Version Version
	// Address is the server's.
	Address netip.Addr
	// Source and Options are for the kernel, one option to an element, in
	// order.
	Source  string
	Options []string
}

// defaultPort is the NFS port, but for RDMA.
const defaultPort = 2049

// endpoints are where the services of one server are.
type endpoints struct {
	address netip.Addr
	// port is the NFS port, 0 for the kernel's default (RDMA has its own).
	port uint16
	// local is this node's address towards the server.
	local netip.Addr
	// Of NFSv3 only:
	mountAddress  netip.Addr
	mountPort     uint16
	mountProtocol string
}

// attempt works out the kernel's parameters.
func (o Options) attempt(s Source, v Version, e endpoints) Attempt {
	var words []string
	set := func(key, value string) { words = append(words, key+"="+value) }
	rest := o.Rest
	if len(rest) > 0 && rest[0] == "sloppy" {
		words, rest = append(words, rest[0]), rest[1:]
	}
	set("vers", v.String())
	set("proto", netid(o.Transport.Protocol, e.address))
	set("addr", e.address.String())
	// Without a port the kernel asks rpcbind for NFSv3, and takes 2049 for NFSv4.
	if e.port != 0 && (o.Port != nil || v.Major == 3 || e.port != defaultPort) {
		set("port", strconv.Itoa(int(e.port)))
	}
	if v.Major == 4 {
		if e.local.IsValid() {
			set("clientaddr", e.local.String())
		}
		return Attempt{v, e.address, s.String(), append(words, rest...)}
	}
	if e.mountAddress != e.address {
		set("mountaddr", e.mountAddress.String())
	}
	if o.MountHost != "" {
		set("mounthost", o.MountHost)
	}
	set("mountvers", o.mountVersion())
	set("mountproto", netid(e.mountProtocol, e.mountAddress))
	set("mountport", strconv.Itoa(int(e.mountPort)))
	return Attempt{v, e.address, s.String(), append(words, rest...)}
}

// mountVersion is the version of the MOUNT protocol: NFSv3 file handles come
// from 3.
func (o Options) mountVersion() string {
	if o.MountVersion != "" {
		return o.MountVersion
	}
	return "3"
}
