// Package glusterserver runs a GlusterFS server for tests, in namespaces that end with the
// test. Like every package below util, it carries no promise of compatibility.
package glusterserver

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/rerun"
	"github.com/podvol/podvol/util/testenv/testtool"
)

const (
	// networkVar says that the process has a network of its own.
	networkVar = "PODVOL_GLUSTER_NETWORK"
	// Address is the server's, which answers at all other addresses of 192.0.2.0/24, too.
	Address = "192.0.2.1"
)

// Server is a server. Its bricks are in memory.
type Server struct {
	// Bricks is the directory of the volumes' bricks.
	Bricks string
	// PID is the process that tells clients what volumes consist of.
	PID int
}

// Run runs f as root in a network, a mount namespace and a PID namespace of its own,
// beside a server: processes that f leaves behind end with it. As for [nstest.Run], f runs in
// another process, and what the test does before is done again there. A machine without the
// server's programs skips the test; an ordinary user runs nothing.
func Run(t *testing.T, f func(t *testing.T, s *Server)) {
	t.Helper()
	inNetwork(t, func() {
		nstest.RunAs(t, []nstest.Mode{nstest.Host}, func(t *testing.T) { f(t, start(t)) })
	})
}

// inNetwork runs f in a process with a network of its own: daemons and mounts of f are all
// in it, which a thread's own would not do.
func inNetwork(t *testing.T, f func()) {
	t.Helper()
	if os.Getenv(networkVar) != "" {
		f()
		return
	}
	if os.Geteuid() != 0 {
		t.Log("nothing is run: a Gluster server needs root")
		return
	}
	testtool.Need(t, "glusterd", "gluster", "mount")
	ctx, cancel := rerun.Context(t)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", rerun.Args(t)...)
	cmd.Env = append(os.Environ(), networkVar+"=own")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	var err error
	ended := make(chan struct{})
	go func() { // the parent-death signal is sent when this thread ends
		defer close(ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err = cmd.Run()
	}()
	<-ended
	if err != nil {
		t.Fatalf("the test failed in its network: %v", err)
	}
}

// start gives the network its addresses, and starts a server whose files are in memory.
// Clients find neither systemd nor cgroups, in which they would leave something.
func start(t *testing.T) *Server {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	testtool.Must(t, err)
	testtool.Must(t, netlink.LinkSetUp(lo))
	address := netip.MustParsePrefix(Address + "/24")
	err = netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), 32)}})
	testtool.Must(t, err)
	for _, dir := range []string{"/var/lib/glusterd", "/var/log/glusterfs", "/run", "/sys/fs/cgroup"} {
		testtool.Must(t, os.MkdirAll(dir, 0o755))
		testtool.Must(t, unix.Mount("glusterserver", dir, "tmpfs", 0, ""))
	}
	testtool.Must(t, os.Mkdir("/run/gluster", 0o755))
	keepUpdatedb(t)
	s := &Server{Bricks: t.TempDir()}
	testtool.Must(t, unix.Mount("glusterserver", s.Bricks, "tmpfs", 0, ""))
	pid := filepath.Join(t.TempDir(), "pid")
	command(t, "glusterd", "-p", pid) // which returns when it serves
	content, err := os.ReadFile(pid)
	testtool.Must(t, err)
	s.PID, err = strconv.Atoi(strings.TrimSpace(string(content)))
	testtool.Must(t, err)
	return s
}

// keepUpdatedb keeps the mount helper from adding its type to updatedb.conf(5), which it
// does where that lacks it.
func keepUpdatedb(t *testing.T) {
	t.Helper()
	const config = "/etc/updatedb.conf"
	content, err := os.ReadFile(config)
	if err != nil || bytes.Contains(content, []byte("glusterfs")) {
		return
	}
	copied := filepath.Join(t.TempDir(), "updatedb.conf")
	testtool.Must(t, os.WriteFile(copied, append(content, "# glusterfs\n"...), 0o644))
	testtool.Must(t, unix.Mount(copied, config, "", unix.MS_BIND, ""))
}

// NewVolume makes a volume of one brick, and starts it.
func (s *Server) NewVolume(t *testing.T, name string) {
	t.Helper()
	s.Gluster(t, "volume", "create", name, Address+":"+filepath.Join(s.Bricks, name), "force")
	s.Gluster(t, "volume", "start", name)
}

// KillBricks kills the processes of a volume's bricks: clients lose them, and the server does
// not start them again by itself.
func (s *Server) KillBricks(t *testing.T, volume string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("/run/gluster/vols", volume, "*.pid"))
	testtool.Must(t, err)
	if len(files) == 0 {
		t.Fatalf("no process of the volume %s is known", volume)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		testtool.Must(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
		testtool.Must(t, err)
		testtool.Must(t, unix.Kill(pid, unix.SIGKILL))
		// It was left to process 1, which the test is. The server takes a zombie for running.
		_, err = eintr.Get(func() (int, error) { return unix.Wait4(pid, nil, 0, nil) })
		testtool.Must(t, err)
	}
}

// Gluster runs a command of gluster(8).
func (s *Server) Gluster(t *testing.T, args ...string) {
	t.Helper()
	command(t, "gluster", append([]string{"--mode=script"}, args...)...)
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
