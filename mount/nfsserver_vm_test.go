package mount

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nfsServer is the kernel's NFS server with Debian's daemons around it, in a
// virtual machine whose own files are theirs to change. The root of what it
// exports is a tmpfs, for NFSv3 and NFSv4 alike.
type nfsServer struct {
	t           *testing.T
	tools, root string
}

// startNFSServer starts rpcbind, mountd, statd and nfsd with all versions.
func startNFSServer(t *testing.T, tools string) *nfsServer {
	t.Helper()
	s := &nfsServer{t, tools, filepath.Join(t.TempDir(), "exported")}
	s.makeRoot()
	s.configure()
	s.daemon("rpcbind", 111, "-f")
	must(t, unix.Mount("nfsd", "/proc/fs/nfsd", "nfsd", 0, ""))
	s.run("exportfs", "-ra")
	s.daemon("rpc.mountd", 20048, "-F", "-p", "20048")
	s.set("nfsv4leasetime", "10")
	s.set("nfsv4gracetime", "10")
	s.serve("+3 +4 +4.1 +4.2")
	t.Cleanup(func() { s.set("threads", "0") })
	return s
}

// makeRoot makes what is exported: /data to everybody, and /denied to somebody
// else.
func (s *nfsServer) makeRoot() {
	must(s.t, os.MkdirAll(s.root, 0o755))
	must(s.t, unix.Mount("exported", s.root, "tmpfs", 0, "mode=755"))
	s.t.Cleanup(func() { must(s.t, unix.Unmount(s.root, unix.MNT_DETACH)) })
	for _, dir := range []string{"data/sub", "denied"} {
		must(s.t, os.MkdirAll(s.path(dir), 0o755))
	}
	must(s.t, os.WriteFile(s.path("data/hello"), []byte("hello"), 0o644))
}

// configure writes what the daemons read.
func (s *nfsServer) configure() {
	for _, dir := range []string{"sm", "sm.bak", "v4recovery"} { // without the last the grace period cannot be ended
		must(s.t, os.MkdirAll(filepath.Join("/var/lib/nfs", dir), 0o755))
	}
	must(s.t, os.WriteFile("/var/lib/nfs/rmtab", nil, 0o644))
	must(s.t, os.MkdirAll("/run/rpcbind", 0o755))
	netconfig, err := os.ReadFile(filepath.Join(s.tools, "etc/netconfig"))
	must(s.t, err)
	for file, content := range map[string]string{
		"netconfig":     string(netconfig),
		"passwd":        "root:x:0:0::/:/bin/false\n_rpc:x:1:65534::/run/rpcbind:/bin/false\nstatd:x:2:65534::/:/bin/false\n",
		"group":         "root:x:0:\nnogroup:x:65534:\n",
		"hosts":         "127.0.0.1 localhost\n::1 localhost\n",
		"services":      "sunrpc 111/tcp portmapper\nsunrpc 111/udp portmapper\nnfs 2049/tcp\nnfs 2049/udp\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\nnetgroup: files\n",
		"nfs.conf":      "[exports]\nrootdir=" + s.root + "\n",
		"exports":       "/data *(rw,insecure,no_root_squash,no_subtree_check,fsid=1)\n/denied 192.0.2.1(rw,fsid=2,no_subtree_check)\n",
	} {
		must(s.t, os.WriteFile(filepath.Join("/etc", file), []byte(content), 0o644))
	}
}

func (s *nfsServer) path(name string) string { return filepath.Join(s.root, name) }

// command runs a tool with the libraries it came with.
func (s *nfsServer) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	libraries := filepath.Join(s.tools, "lib/x86_64-linux-gnu") + ":" + filepath.Join(s.tools, "usr/lib/x86_64-linux-gnu")
	tool := filepath.Join(s.tools, "sbin", name)
	if _, err := os.Stat(tool); err != nil {
		tool = filepath.Join(s.tools, "usr/sbin", name)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.tools, "lib64/ld-linux-x86-64.so.2"), append([]string{"--library-path", libraries, tool}, args...)...)
	cmd.Stdout, cmd.Stderr = s.t.Output(), s.t.Output()
	cmd.Dir = "/"
	return cmd
}

func (s *nfsServer) run(name string, args ...string) {
	s.t.Helper()
	if err := s.command(s.t.Context(), name, args...).Run(); err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
}

// daemon starts one in the foreground, waits until it listens at a port, and
// returns what ends it.
func (s *nfsServer) daemon(name string, port int, args ...string) (stop func()) {
	s.t.Helper()
	cmd := s.command(context.Background(), name, args...)
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for deadline := time.Now().Add(20 * time.Second); ; {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			conn.Close()
			break
		}
		select {
		case err := <-ended:
			s.t.Fatalf("%s has ended: %v", name, err)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("%s does not listen at %d", name, port)
		}
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cmd.Process.Signal(syscall.SIGTERM) // so that it takes itself off rpcbind's list
			<-ended
		}
	}
	s.t.Cleanup(stop)
	return stop
}

// statd starts the lock clients' daemon.
func (s *nfsServer) statd() (stop func()) {
	return s.daemon("rpc.statd", 20049, "-F", "--no-notify", "-p", "20049")
}

func (s *nfsServer) set(file, value string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join("/proc/fs/nfsd", file), []byte(value+"\n"), 0); err != nil {
		s.t.Fatalf("nfsd %s %q: %v", file, value, err)
	}
}

// serve starts nfsd anew with other versions.
func (s *nfsServer) serve(versions string) {
	s.t.Helper()
	s.stop()
	s.set("versions", versions)
	s.listen(unix.AF_INET, &unix.SockaddrInet4{Port: 2049})
	s.listen(unix.AF_INET6, &unix.SockaddrInet6{Port: 2049})
	s.set("threads", "2")
	s.set("v4_end_grace", "Y")
}

// listen gives nfsd a socket, as rpc.nfsd does: only those it is given so does
// it tell rpcbind of.
func (s *nfsServer) listen(family int, address unix.Sockaddr) {
	s.t.Helper()
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(s.t, err)
	defer unix.Close(fd)
	must(s.t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	if family == unix.AF_INET6 {
		must(s.t, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1))
	}
	must(s.t, unix.Bind(fd, address))
	must(s.t, unix.Listen(fd, 64))
	s.set("portlist", strconv.Itoa(fd))
}

// stop stops nfsd.
func (s *nfsServer) stop() { s.set("threads", "0") }
