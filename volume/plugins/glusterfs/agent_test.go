package glusterfs_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/testenv/glusterserver"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/glusterfs"
	"github.com/podvol/podvol/volume/volumetest"
)

const (
	// agentVar has the test binary be an agent with this root directory, and cgroupVar
	// its host.Config.CgroupDir.
	agentVar  = "PODVOL_GLUSTER_AGENT"
	cgroupVar = "PODVOL_GLUSTER_CGROUPS"
)

// theServer is the role of an agent's host.
type theServer struct{}

func (theServer) GetEndpointAddresses(context.Context, string, string) ([]string, error) {
	return []string{glusterserver.Address}, nil
}

// agent sets the volume "vol" of the pod "a" up, says so, and stays until it is killed.
func agent(root, cgroups string) (code int) {
	plugin := glusterfs.New(glusterfs.Config{TrustPodNamespaces: true})
	spec := volumetest.Inline(v1.VolumeSource{Glusterfs: &v1.GlusterfsVolumeSource{EndpointsName: "gluster", Path: "data"}})(nil)
	err := plugin.Init(&volume.Host{
		RootDir: root, NodeName: "node", Endpoints: theServer{},
		Mounter: host.New(host.Config{CgroupDir: cgroups, SystemdDir: root + "/none"}),
	})
	if err == nil {
		var m volume.Mounter
		if m, err = plugin.NewMounter(spec, fakehost.Pod("a", *spec.Volume)); err == nil {
			err = m.SetUp(context.Background(), volume.MounterArgs{})
		}
	}
	fmt.Println("set up:", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// startAgent starts an agent with a node's root directory, in a cgroup if that is given.
func (n *node) startAgent(cgroups string, cgroup *os.File) (cmd *exec.Cmd, says *bufio.Reader) {
	n.t.Helper()
	cmd = exec.CommandContext(n.t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), agentVar+"="+n.RootDir, cgroupVar+"="+cgroups)
	if cgroup != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	}
	_, err := cmd.StdinPipe()
	testtool.Must(n.t, err)
	out, err := cmd.StdoutPipe()
	testtool.Must(n.t, err)
	testtool.Must(n.t, cmd.Start())
	return cmd, bufio.NewReader(out)
}

// The client serves on when the agent's whole cgroup is killed, and the next agent finds it.
func outlivesAgent(t *testing.T) {
	cgroups := t.TempDir()
	if err := unix.Mount("cgroup2", cgroups, "cgroup2", 0, ""); err != nil {
		t.Skip("cgroups of version 2 cannot be mounted here:", err)
	}
	t.Cleanup(func() { testtool.Must(t, unix.Unmount(cgroups, unix.MNT_DETACH)) })
	ours, err := os.MkdirTemp(cgroups, "podvol-test-")
	if err != nil {
		t.Skip("cgroups cannot be made here:", err)
	}
	at := filepath.Join(ours, "agent")
	testtool.Must(t, os.Mkdir(at, 0o755))
	cgroup, err := os.Open(at)
	testtool.Must(t, err)
	defer cgroup.Close()

	n := newNode(t, glusterfs.Config{})
	m, u, dir := n.pod("a", "data", false)
	cmd, says := n.startAgent(ours, cgroup)
	if line, err := says.ReadString('\n'); line != "set up: <nil>\n" {
		t.Fatalf("the agent says %q, %v", line, err)
	}
	testtool.Must(t, os.WriteFile(filepath.Join(dir, "kept"), []byte("hello"), 0o644))
	before := clients(t, dir)
	testtool.Must(t, os.WriteFile(filepath.Join(at, "cgroup.kill"), []byte("1"), 0))
	if err := cmd.Wait(); err == nil {
		t.Error("the agent was not killed")
	}
	testtool.Must(t, m.SetUp(t.Context(), volume.MounterArgs{}))
	if after := clients(t, dir); len(before) == 0 || fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the clients were %v, and are %v", before, after)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "kept")); string(got) != "hello" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	testtool.Must(t, u.TearDown(t.Context()))
	n.wantGone(dir)
	removeCgroups(t, at, filepath.Join(ours, "podvol.mounts"), ours)
}

// removeCgroups removes cgroups once the processes that were in them are gone. They were left
// to process 1, which the test is.
func removeCgroups(t *testing.T, dirs ...string) {
	t.Helper()
	for _, dir := range dirs {
		for err := os.Remove(dir); err != nil; err = os.Remove(dir) {
			if os.IsNotExist(err) {
				break
			}
			if t.Context().Err() != nil {
				t.Fatal(err)
			}
			_, _ = eintr.Get(func() (int, error) { return unix.Wait4(-1, nil, unix.WNOHANG, nil) })
		}
	}
}

// An agent is killed while mount(8), or its client, waits for a server that hangs. Whatever
// comes of that, the next agent has the volume mounted once, and leaves nothing of it.
func agentKilled(t *testing.T, s *glusterserver.Server, program string) {
	n := newNode(t, glusterfs.Config{})
	m, u, dir := n.pod("a", "data", false)
	kill(t, unix.SIGSTOP, s.PID)
	defer kill(t, unix.SIGCONT, s.PID)
	cmd, _ := n.startAgent("", nil)
	for len(running(t, program, dir)) == 0 && t.Context().Err() == nil {
	}
	testtool.Must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	done := make(chan error)
	go func() { done <- m.SetUp(t.Context(), volume.MounterArgs{}) }()
	kill(t, unix.SIGCONT, s.PID)
	testtool.Must(t, <-done)
	testtool.Must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	testtool.Must(t, err)
	if times := strings.Count(string(mounts), " "+dir+" "); times != 1 {
		t.Errorf("mounted %d times", times)
	}
	testtool.Must(t, u.TearDown(t.Context()))
	n.wantGone(dir)
}
