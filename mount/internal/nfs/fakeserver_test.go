package nfs

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// service is what a fake server says of one program.
type service struct {
	low, high uint32
	// ports are what rpcbind says of it, by netid; 0 or absent: not registered.
	ports map[string]uint16
	// silent: a call is never answered. rude: the connection is closed.
	// garbage: what is answered is not RPC. denied: the call is rejected.
	silent, rude, garbage, denied bool
}

// fakeServer speaks as rpcbind, mountd, nfsd and statd at once, over TCP and
// UDP, on one port of one loopback address.
type fakeServer struct {
	t        *testing.T
	address  netip.AddrPort
	services map[program]service
	mu       sync.Mutex
	asked    []program
	held     []net.Conn
}

// serve starts a server on a loopback address.
func serve(t *testing.T, address string, services map[program]service) *fakeServer {
	t.Helper()
	listener, packets := onePort(t, address)
	s := &fakeServer{t: t, services: services, address: listener.Addr().(*net.TCPAddr).AddrPort()}
	t.Cleanup(func() {
		listener.Close()
		packets.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range s.held {
			c.Close()
		}
	})
	go s.accept(listener)
	go s.receive(packets)
	return s
}

// onePort listens over TCP and UDP on one port: one that is free for the former
// may be somebody's for the latter.
func onePort(t *testing.T, address string) (listener net.Listener, packets net.PacketConn) {
	t.Helper()
	for {
		listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
		if err != nil {
			t.Fatal(err)
		}
		packets, err := net.ListenPacket("udp", listener.Addr().String())
		if err == nil {
			return listener, packets
		}
		listener.Close()
		if !errors.Is(err, unix.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}

func (s *fakeServer) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.held = append(s.held, conn)
		s.mu.Unlock()
		go s.serveConn(conn)
	}
}

func (s *fakeServer) serveConn(conn net.Conn) {
	for {
		var header [4]byte
		if _, err := io.ReadFull(conn, header[:]); err != nil {
			return
		}
		message := make([]byte, binary.BigEndian.Uint32(header[:])&^lastFragment)
		if _, err := io.ReadFull(conn, message); err != nil {
			return
		}
		reply := s.answer(message)
		if reply == nil {
			continue
		}
		if len(reply) == 0 {
			conn.Close()
			return
		}
		// In two fragments, as a server may.
		half := len(reply) / 2
		conn.Write(append(appendUint32(nil, uint32(half)), reply[:half]...))
		conn.Write(append(appendUint32(nil, lastFragment|uint32(len(reply)-half)), reply[half:]...))
	}
}

func (s *fakeServer) receive(packets net.PacketConn) {
	buffer := make([]byte, maxReply)
	for {
		n, from, err := packets.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if reply := s.answer(buffer[:n]); err == nil && len(reply) > 0 {
			packets.WriteTo([]byte("noise that answers nothing"), from)
			packets.WriteTo(reply, from)
		}
	}
}

// answer returns nil for silence, and an empty reply to close the connection.
func (s *fakeServer) answer(message []byte) []byte {
	r := reader{left: message}
	xid, _, _ := r.uint32(), r.uint32(), r.uint32()
	p, version, procedure := program(r.uint32()), r.uint32(), r.uint32()
	for range 4 {
		r.uint32()
	}
	s.mu.Lock()
	s.asked = append(s.asked, p)
	s.mu.Unlock()
	accepted := func(status uint32, results ...uint32) []byte {
		return appendUint32(appendUint32(nil, xid, msgReply, 0, 0, 0, status), results...)
	}
	what, ok := s.service(p)
	switch {
	case !ok:
		return accepted(progUnavail)
	case what.silent:
		return nil
	case what.rude:
		return []byte{}
	case what.garbage:
		return []byte("HTTP/1.1 400 Bad Request\r\n\r\n")
	case what.denied:
		return appendUint32(nil, xid, msgReply, replyDenied, 1, 1)
	case version < what.low || version > what.high:
		return accepted(progMismatch, what.low, what.high)
	case p != programPortmap || procedure == procNull:
		return accepted(acceptOK)
	}
	return append(accepted(acceptOK), s.portmap(version, &r)...)
}

func (s *fakeServer) portmap(version uint32, r *reader) []byte {
	of, _ := s.service(program(r.uint32()))
	ofVersion := r.uint32()
	known := ofVersion >= of.low && ofVersion <= of.high
	if version == portmapVersion {
		id := map[uint32]string{ipprotoTCP: "tcp", ipprotoUDP: "udp"}[r.uint32()]
		if !known {
			return appendUint32(nil, 0)
		}
		return appendUint32(nil, uint32(of.ports[id]))
	}
	port := of.ports[string(r.bytes())]
	if !known || port == 0 {
		return appendString(nil, "")
	}
	return appendString(nil, "::."+netip.AddrFrom4([4]byte{0, 0, byte(port >> 8), byte(port)}).String()[4:])
}

func (s *fakeServer) wasAsked(p program) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.asked, p)
}

// everywhere registers a service on one port for all protocols.
func everywhere(port uint16) map[string]uint16 {
	return map[string]uint16{"tcp": port, "udp": port, "tcp6": port, "udp6": port}
}

// set says what the server is from now on for a program, and registers it.
func (s *fakeServer) set(p program, of service) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if of.ports == nil {
		of.ports = everywhere(s.address.Port())
	}
	s.services[p] = of
}

func (s *fakeServer) service(p program) (service, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, ok := s.services[p]
	return of, ok
}

// client has its rpcbind at the server, on this node as well.
func (s *fakeServer) client() *Client {
	return &Client{Resolver: hosts{}, RPCBindPort: s.address.Port()}
}

// freePort is a port of an address on which nothing listens.
func freePort(t *testing.T, address string) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

// relay passes datagrams on to a server and back, but for those that it loses.
func relay(t *testing.T, to netip.AddrPort, passes func() bool) netip.AddrPort {
	t.Helper()
	front, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { front.Close() })
	go func() {
		buffer := make([]byte, maxReply)
		for {
			n, from, err := front.ReadFrom(buffer)
			if err != nil {
				return
			}
			if !passes() {
				continue
			}
			back, err := net.Dial("udp", to.String())
			if err != nil {
				continue
			}
			back.Write(buffer[:n])
			back.Read(buffer) // the noise before the reply
			if n, err = back.Read(buffer); err == nil {
				front.WriteTo(buffer[:n], from)
			}
			back.Close()
		}
	}()
	return front.LocalAddr().(*net.UDPAddr).AddrPort()
}
