package nfsserver

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"time"
)

// network is the wire between the machine and a server with namespaces of its
// own, and the addresses at both its ends.
type network struct {
	name           string // of the machine's interface
	server, client end
	delay          time.Duration
	dropped        bool
}

type end struct {
	hardware net.HardwareAddr
	v4, v6   netip.Prefix
}

// serverInterface is the server's.
const serverInterface = "eth0"

// newNetwork chooses the addresses of the number-th network of a machine: those
// for benchmarks (RFC 2544), and unique local ones.
func newNetwork(name string, number byte) *network {
	end := func(host byte) end {
		return end{
			hardware: net.HardwareAddr{2, 0, 0, 0, number, host},
			v4:       netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, number, host}), 24),
			v6:       netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 7: number, 15: host}), 64),
		}
	}
	return &network{name: "to-" + name, client: end(1), server: end(2)}
}

// connect makes the wire and sets up both its ends.
func (n *network) connect(at place) error {
	var ns *os.File
	err := at.do(func() (err error) {
		ns, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := addPair(n.name, n.client.hardware, serverInterface, n.server.hardware, int(ns.Fd())); err != nil {
		return fmt.Errorf("connect the networks: %w", err)
	}
	if err := n.client.setUp(n.name, n.server); err != nil {
		return err
	}
	return at.do(func() error {
		if err := setUp("lo"); err != nil {
			return err
		}
		return n.server.setUp(serverInterface, n.client)
	})
}

func (e end) setUp(name string, other end) error {
	if err := setUp(name); err != nil {
		return fmt.Errorf("take %s into use: %w", name, err)
	}
	for _, prefix := range []netip.Prefix{e.v4, e.v6} {
		if err := addAddress(name, prefix); err != nil {
			return fmt.Errorf("give %s the address %s: %w", name, prefix, err)
		}
	}
	for _, prefix := range []netip.Prefix{other.v4, other.v6} {
		if err := addNeighbour(name, prefix.Addr(), other.hardware); err != nil {
			return fmt.Errorf("tell %s where %s is: %w", name, prefix.Addr(), err)
		}
	}
	return nil
}

// apply has the wire do what is asked of it: what is dropped is so in both
// directions, what is delayed are the answers.
func (n *network) apply(at place) error {
	if err := emulate(n.name, 0, n.dropped); err != nil {
		return fmt.Errorf("control %s: %w", n.name, err)
	}
	err := at.do(func() error { return emulate(serverInterface, n.delay, n.dropped) })
	if err != nil {
		return fmt.Errorf("control the server's %s: %w", serverInterface, err)
	}
	return nil
}

// Drop drops all traffic from and to the server, silently: neither is anything
// refused nor is anything unreachable. Only a server with a name has a wire.
func (s *Server) Drop() {
	s.t.Helper()
	s.control(func(n *network) { n.dropped = true })
}

// Pass lets the traffic through again.
func (s *Server) Pass() {
	s.t.Helper()
	s.control(func(n *network) { n.dropped = false })
}

// Delay has whatever the server sends arrive so much later; 0 ends that.
func (s *Server) Delay(d time.Duration) {
	s.t.Helper()
	s.control(func(n *network) { n.delay = d })
}

// Outlive has a server that was dropped be silent until the very end of the
// machine, when all other processes have been killed and its network would go,
// which clients notice. It starts a process there that systemd-shutdown(8)
// spares, as it does the daemons of root file systems (argv[0] begins with @).
func (s *Server) Outlive() {
	s.t.Helper()
	cmd := exec.Command("sleep", "infinity")
	cmd.Args[0] = "@sleep"
	s.must("outlive all others", s.at.do(cmd.Start))
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
}

func (s *Server) control(change func(*network)) {
	s.t.Helper()
	if s.wire == nil {
		s.t.Fatal("a server without a name has no wire of its own")
	}
	change(s.wire)
	s.must("control the wire", s.wire.apply(s.at))
}
