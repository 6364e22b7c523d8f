// Package cephcluster gives tests a cluster of Ceph, of Debian's packages: a monitor, an OSD that
// keeps its data in memory, and a metadata server. They run on the host, natively, in a network
// namespace of their own; the test runs in a virtual machine (package vmtest) whose kernel has
// Ceph's clients, and reaches them by QEMU's user networking.
//
// It needs root, QEMU and a network for the packages (about 100 MB, once). A cluster is there in
// about ten seconds.
//
// Like every package below util, it carries no promise of compatibility.
package cephcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/debs"
	"github.com/podvol/podvol/util/testenv/rerun"
	"github.com/podvol/podvol/util/testenv/vmtest"
)

const (
	// Monitor is where the cluster's monitor listens. The address is one that documents use.
	Monitor = address + ":6789"
	// Silent accepts connections and never answers.
	Silent = address + ":6790"

	address     = "198.51.100.1"
	commandPort = address + ":6791"
	clusterID   = "3fe1d6e2-5b3d-4cde-9a2f-6a1f0ad60b1c"
	osdID       = "86f9a3ab-5b86-4b4e-9c43-0c7e0a31a5b4"

	// insideVar is set in the network namespace, and keyVar in the machine.
	insideVar = "PODVOL_TEST_CEPH_INSIDE"
	keyVar    = "PODVOL_TEST_CEPH_KEY"
)

// Cluster is the cluster of a test.
type Cluster struct {
	// Key is that of user admin.
	Key string
}

// Run runs f in a virtual machine beside a new cluster, if PODVOL_VMTEST asks for machines; else,
// and in a machine that others have started, it does nothing. The cluster has the pool rbd, and the file system fs.
func Run(t *testing.T, f func(t *testing.T, c Cluster)) {
	t.Helper()
	machine := vmtest.Machine{Network: true}
	inside := func(t *testing.T) { f(t, Cluster{os.Getenv(keyVar)}) }
	if vmtest.Inside() && os.Getenv(keyVar) == "" {
		t.Log("not run: this machine has no cluster beside it")
		return
	}
	if ask := os.Getenv("PODVOL_VMTEST"); vmtest.Inside() || ask == "" || ask == "0" {
		vmtest.RunOn(t, machine, inside)
		return
	}
	if os.Getenv(insideVar) == "" {
		again(t)
		return
	}
	runtime.LockOSThread() // until the test has ended: what it starts ends with the thread
	h := &hosted{T: t, programs: unpack(t), dir: t.TempDir()}
	t.Setenv(keyVar, h.start())
	vmtest.RunOn(t, machine, inside)
}

func unpack(t *testing.T) debs.Tree {
	return debs.Unpack(t, "ceph", "ceph-mon", "ceph-osd", "ceph-mds", "ceph-base", "ceph-common", "python3.11-minimal",
		"python3-rados", "python3-ceph-argparse", "python3-ceph-common", "python3-prettytable", "python3-wcwidth", "python3-yaml", "python3-rbd")
}

// again runs the calling test in a network namespace of its own.
func again(t *testing.T) {
	unpack(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := rerun.Context(t)
	defer cancel()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, binary, rerun.Args(t)...)
	cmd.Env = append(os.Environ(), insideVar+"=1")
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if err := cmd.Run(); err != nil {
		t.Fatalf("beside the cluster: %v", err)
	}
}

// hosted is the cluster on the host.
type hosted struct {
	*testing.T
	programs debs.Tree
	dir      string
}

func (h *hosted) path(name string) string { return filepath.Join(h.dir, name) }

// start starts the cluster, and returns its key.
func (h *hosted) start() string {
	h.must(exec.Command("busybox", "ip", "link", "set", "lo", "up").Run(), exec.Command("busybox", "ip", "addr", "add", address+"/32", "dev", "lo").Run())
	for _, name := range []string{"mon", "osd", "mds"} {
		h.must(os.Mkdir(h.path(name), 0o700))
	}
	h.must(os.WriteFile(h.path("ceph.conf"), []byte(h.config()), 0o600))
	for _, user := range [][]string{
		{"mon.", "mon", "allow *"},
		{"client.admin", "mon", "allow *", "osd", "allow *", "mds", "allow *"},
		{"osd.0", "mon", "allow profile osd", "osd", "allow *"},
		{"mds.a", "mon", "allow profile mds", "osd", "allow rwx", "mds", "allow *"},
	} {
		args := []string{h.path("keyring"), "--gen-key", "-n", user[0]}
		if user[0] == "mon." { // the first
			args = append(args, "--create-keyring")
		}
		for i := 1; i < len(user); i += 2 {
			args = append(args, "--cap", user[i], user[i+1])
		}
		h.run("ceph-authtool", args...)
	}
	h.run("monmaptool", "--create", "--fsid", clusterID, "--addv", "a", "[v1:"+Monitor+"]", h.path("monmap"))
	h.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", h.path("monmap"), "--keyring", h.path("keyring"))
	h.daemon("ceph-mon", "-i", "a")
	h.ceph("osd", "new", osdID)
	h.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osdID)
	h.daemon("ceph-osd", "-i", "0")
	h.daemon("ceph-mds", "-i", "a")
	for _, pool := range []string{"rbd", "meta", "data"} {
		h.ceph("osd", "pool", "create", pool, "8")
	}
	h.ceph("fs", "new", "fs", "meta", "data")
	silent, err := net.Listen("tcp", Silent) // whose backlog takes connections
	h.must(err)
	h.Cleanup(func() { silent.Close() })
	h.serve()
	return strings.TrimSpace(h.run("ceph-authtool", h.path("keyring"), "-n", "client.admin", "-p"))
}

func (h *hosted) config() string {
	lib := filepath.Join(h.programs.Dir, "usr/lib/x86_64-linux-gnu")
	var b strings.Builder
	for _, setting := range [][2]string{
		{"fsid", clusterID}, {"mon host", "v1:" + Monitor}, {"mon initial members", "a"},
		{"auth cluster required", "cephx"}, {"auth service required", "cephx"}, {"auth client required", "cephx"}, {"auth allow insecure global id reclaim", "false"},
		{"keyring", h.path("keyring")}, {"run dir", h.dir}, {"admin socket", ""}, {"log file", ""}, {"err to stderr", "true"},
		{"mon data", h.path("mon")}, {"osd data", h.path("osd")}, {"mds data", h.path("mds")}, {"public addr", address}, {"cluster addr", address}, {"ms bind msgr2", "false"},
		{"osd pool default size", "1"}, {"osd pool default min size", "1"}, {"osd crush chooseleaf type", "0"}, {"osd pool default pg autoscale mode", "off"},
		{"mon allow pool size one", "true"}, {"mon data avail crit", "1"}, {"osd objectstore", "memstore"}, {"memstore device bytes", "1073741824"},
		{"plugin dir", lib + "/ceph"}, {"erasure code dir", lib + "/ceph/erasure-code"}, {"osd class dir", lib + "/rados-classes"},
	} {
		fmt.Fprintf(&b, "%s = %s\n", setting[0], setting[1])
	}
	return "[global]\n" + b.String()
}

func (h *hosted) must(errs ...error) {
	h.Helper()
	if err := errors.Join(errs...); err != nil {
		h.Fatal(err)
	}
}

func (h *hosted) command(ctx context.Context, program string, args ...string) (*exec.Cmd, error) {
	if program == "ceph" { // which is Python's
		program, args = "python3.11", append([]string{filepath.Join(h.programs.Dir, "usr/bin/ceph")}, args...)
	}
	cmd, err := h.programs.Command(ctx, program, args...)
	if err == nil {
		usr := filepath.Join(h.programs.Dir, "usr")
		cmd.Env = append(os.Environ(), "CEPH_CONF="+h.path("ceph.conf"), "PYTHONHOME="+usr, "PYTHONPATH="+usr+"/lib/python3/dist-packages", "PYTHONDONTWRITEBYTECODE=1")
	}
	return cmd, err
}

// do runs a program, for a minute at most.
func (h *hosted) do(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd, err := h.command(ctx, program, args...)
	if err != nil {
		return "", err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, stderr.String())
	}
	return string(out), err
}

func (h *hosted) run(program string, args ...string) string {
	h.Helper()
	out, err := h.do(program, args...)
	h.must(err)
	return out
}

func (h *hosted) ceph(args ...string) { h.Helper(); h.run("ceph", args...) }

// daemon runs a daemon until the test ends.
func (h *hosted) daemon(program string, args ...string) {
	h.Helper()
	cmd, err := h.command(context.Background(), program, append([]string{"-f"}, args...)...)
	h.must(err)
	log, err := os.Create(h.path(program + ".log"))
	h.must(err)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	h.must(cmd.Start())
	h.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if text, err := os.ReadFile(log.Name()); h.Failed() && err == nil {
			h.Logf("%s said: %s", program, text[max(0, len(text)-4096):])
		}
	})
}

// order is a program that the machine has the host run, and answer what came of it.
type (
	order  struct{ Args []string }
	answer struct{ Out, Err string }
)

// serve runs programs for the machine.
func (h *hosted) serve() {
	l, err := net.Listen("tcp", commandPort)
	h.must(err)
	done := make(chan struct{})
	h.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			var o order
			var a answer
			if err := json.NewDecoder(conn).Decode(&o); err == nil && len(o.Args) > 0 {
				a.Out, err = h.do(o.Args[0], o.Args[1:]...)
				if err != nil {
					a.Err = err.Error()
				}
			}
			_ = json.NewEncoder(conn).Encode(a)
			conn.Close()
		}
	}()
}

// Do has the host run a program of the cluster, such as "rbd resize", with the administrator's
// key, and returns its output. Where it fails the test fails.
func (c Cluster) Do(t testing.TB, args ...string) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", commandPort, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var a answer
	if err := errors.Join(json.NewEncoder(conn).Encode(order{args}), json.NewDecoder(conn).Decode(&a)); err != nil {
		t.Fatal(err)
	}
	if a.Err != "" {
		t.Fatal(a.Err)
	}
	return a.Out
}
