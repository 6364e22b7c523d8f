package nfsserver

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// place is where a server lives: in the machine itself, or in namespaces of its
// own.
type place struct{ calls chan func() }

// do calls f at the place. Programs that f starts live there too. f must not
// end its goroutine.
func (p place) do(f func() error) error {
	if p.calls == nil {
		return f()
	}
	result := make(chan error)
	p.calls <- func() { result <- f() }
	return <-result
}

// newPlace makes a thread with namespaces of its own: of the network, with
// nothing in it but the loopback interface, of mounts, and of the host's name.
// It ends with the test.
func newPlace(t testing.TB, hostname string) (place, error) {
	p := place{make(chan func())}
	ready := make(chan error)
	go p.serve(hostname, ready)
	if err := <-ready; err != nil {
		return place{}, err
	}
	t.Cleanup(func() { close(p.calls) })
	return p, nil
}

// newNode makes a place with a wire to the machine.
func newNode(t testing.TB, hostname string) (place, *network, error) {
	links, err := net.Interfaces()
	if err != nil {
		return place{}, nil, err
	}
	number := 1
	for _, link := range links {
		number = max(number, link.Index) // no two wires have the same, at any time
	}
	at, err := newPlace(t, hostname)
	if err != nil {
		return place{}, nil, err
	}
	wire := newNetwork(hostname, byte(number))
	if err := wire.connect(at); err != nil {
		return place{}, nil, err
	}
	t.Cleanup(func() { // or it goes some time after the namespace, when another may want the name
		if err := removePair(wire.name); err != nil {
			t.Errorf("remove the wire to %s: %v", hostname, err)
		}
	})
	return at, wire, nil
}

// serve never unlocks its thread, which therefore ends with it. It is never the
// process's first thread: that one's mount table is what /proc/self shows.
func (p place) serve(hostname string, ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		elsewhere := make(chan struct{})
		go func() {
			defer close(elsewhere)
			p.serve(hostname, ready)
		}()
		<-elsewhere // until then it keeps the thread from being used
		runtime.UnlockOSThread()
		return
	}
	err := enter(hostname)
	ready <- err
	if err != nil {
		return
	}
	for call := range p.calls {
		call()
	}
}

func enter(hostname string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return fmt.Errorf("set the host's name: %w", err)
	}
	if err := forgetNFS(); err != nil {
		return fmt.Errorf("forget what the machine has mounted: %w", err)
	}
	for _, dir := range []string{"/etc", "/run", "/var/lib/nfs"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(hostname, dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount a tmpfs at %s: %w", dir, err)
		}
	}
	return nil
}

// forgetNFS takes the copies of the machine's NFS mounts away, which would
// keep their servers in use.
func forgetNFS() error {
	file, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	defer file.Close()
	mounts, err := mountinfo.GetMountsFromReader(file, mountinfo.FSTypeFilter("nfs", "nfs4"))
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) { // below another one
			return err
		}
	}
	return nil
}

// configure writes what the daemons of a place read. In the machine itself that
// is as it was again at the test's end; elsewhere it goes with its namespace.
func (p Packages) configure(t testing.TB, at place, hostname string) error {
	netconfig, err := os.ReadFile(filepath.Join(p.Dir, "etc/netconfig"))
	if err != nil {
		return err
	}
	files := map[string]string{
		"/etc/netconfig":     string(netconfig),
		"/etc/passwd":        "root:x:0:0::/:/bin/false\n_rpc:x:1:65534::/run/rpcbind:/bin/false\nstatd:x:2:65534::/:/bin/false\nnobody:x:65534:65534::/:/bin/false\n",
		"/etc/group":         "root:x:0:\nnogroup:x:65534:\n",
		"/etc/hosts":         "127.0.0.1 localhost " + hostname + "\n::1 localhost\n",
		"/etc/services":      "sunrpc 111/tcp portmapper\nsunrpc 111/udp portmapper\nnfs 2049/tcp\nnfs 2049/udp\n",
		"/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nnetgroup: files\n",
		"/var/lib/nfs/rmtab": "",
	}
	return at.do(func() error {
		for _, dir := range []string{"/var/lib/nfs/sm", "/var/lib/nfs/sm.bak", "/var/lib/nfs/v4recovery", "/run/rpcbind"} { // without v4recovery the grace period cannot be ended
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		for file, content := range files {
			if at.calls == nil {
				replace(t, file, func([]byte) []byte { return []byte(content) })
			} else if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
}
