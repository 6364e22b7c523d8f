package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/virtualkubelet/criruntime"
	"github.com/podvol/podvol/util/testenv/imagearchive"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// containerd is a container runtime of a test, with directories and a socket of its own,
// and an image with busybox.
type containerd struct {
	t       *testing.T
	dir     string
	socket  string
	process *exec.Cmd
	ended   chan struct{}
	stderr  bytes.Buffer
	has     *criruntime.Runtime
}

const (
	testImage  = "podvol.test/busybox:1"
	pauseImage = "podvol.test/pause:1"
)

// runtimeDir is where containerd, its shims and runc have their sockets and states, whatever
// their configuration is. Each test has its own there.
const runtimeDir = "/run/containerd"

// withNewContainerd runs a test beside the containerd and runc that testdata/kubernetes/build
// has built, which have user namespaces, and in which pods have networks. Where there are none
// it says that it was not run.
func withNewContainerd(t *testing.T, f func(t *testing.T, c *containerd)) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if _, err := os.Stat(filepath.Join(assets, "containerd")); assets == "" || err != nil {
		t.Log("not run: set KUBEBUILDER_ASSETS to what testdata/kubernetes/build end-to-end prints")
		return
	}
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Host}, func(t *testing.T) { f(t, newContainerd(t, assets)) })
}

// withContainerd runs a test as root, beside a runtime. What the runtime has started ends with
// the test, even if that is killed: it is in the test's PID namespace.
func withContainerd(t *testing.T, f func(t *testing.T, c *containerd)) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Host}, func(t *testing.T) { f(t, newContainerd(t, "")) })
}

func (c *containerd) endpoint() string { return "unix://" + c.socket }

// newContainerd starts the machine's containerd, or that of a directory.
func newContainerd(t *testing.T, assets string) *containerd {
	if err := os.MkdirAll(runtimeDir, 0o755); err != nil {
		t.Fatal(err)
	}
	mounttest.Mount(t, mounttest.Tmpfs(runtimeDir, "mode=755"))
	dir, socket := t.TempDir(), runtimeDir+"/sock"
	c := &containerd{t: t, dir: dir, socket: socket}
	cni := dir + "/cni"
	if assets != "" {
		cni = assets
		c.prepareNetworks()
	}
	config := fmt.Sprintf(`version = 2
root = "%[1]s/root"
state = "%[3]s/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = %[4]q
[plugins."io.containerd.internal.v1.opt"]
path = "%[1]s/opt"
[plugins."io.containerd.nri.v1.nri"]
disable = true # its socket is the machine's, and another test's containerd has it
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = %[2]q
restrict_oom_score_adj = true
disable_apparmor = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "%[5]s"
conf_dir = "%[1]s/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
`, dir, pauseImage, runtimeDir, socket, cni)
	if err := os.WriteFile(dir+"/config.toml", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c.process = exec.Command("containerd", "--config", dir+"/config.toml")
	c.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if assets != "" {
		c.process = exec.Command("/bin/busybox", "sh", "-c", `busybox ip link set lo up && exec containerd --config "$0"`, dir+"/config.toml")
		c.process.Env = append(os.Environ(), "PATH="+assets+":"+os.Getenv("PATH"))
		c.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWNET}
	}
	c.process.Stdout, c.process.Stderr = &c.stderr, &c.stderr
	c.ended = make(chan struct{})
	started := make(chan error)
	go func() {
		goruntime.LockOSThread() // whose end would be containerd's
		defer close(c.ended)
		err := c.process.Start()
		started <- err
		if err == nil {
			_ = c.process.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("%v: is containerd installed?", err)
	}
	t.Cleanup(c.end)
	c.importImages()
	return c
}

// prepareNetworks gives pods networks, which end with containerd's.
func (c *containerd) prepareNetworks() {
	c.t.Helper()
	mounttest.Mount(c.t, mounttest.Tmpfs("/var/lib", "mode=755")) // of the CNI plugins' caches
	network := fmt.Sprintf(`{"cniVersion":"0.4.0","name":"pods","plugins":[{"type":"ptp","ipam":{"type":"host-local","dataDir":"%s/cni-addresses","ranges":[[{"subnet":"10.88.1.0/24"}]]}}]}`, c.dir)
	if err := errors.Join(os.Mkdir(c.dir+"/cni", 0o755), os.WriteFile(c.dir+"/cni/pods.conflist", []byte(network), 0o600)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *containerd) importImages() {
	c.t.Helper()
	names, err := exec.Command("/bin/busybox", "--list-full").Output()
	if err != nil {
		c.t.Fatalf("%v: is busybox-static installed?", err)
	}
	files := []imagearchive.File{{Path: "bin", Mode: os.ModeDir | 0o755}, {Path: "tmp", Mode: os.ModeDir | 0o777 | os.ModeSticky},
		{Path: "bin/busybox", Source: "/bin/busybox", Mode: 0o755}, {Path: "etc/passwd", Content: []byte("root:x:0:0::/root:/bin/sh\n"), Mode: 0o644}}
	for name := range strings.FieldsSeq(string(names)) {
		if strings.HasPrefix(name, "bin/") && name != "bin/busybox" {
			files = append(files, imagearchive.File{Path: name, Link: "/bin/busybox"})
		}
	}
	env := []string{"PATH=/bin"}
	var archive bytes.Buffer
	if err := imagearchive.Write(&archive, imagearchive.Image{Names: []string{testImage}, Entrypoint: []string{"/bin/busybox"}, Cmd: []string{"echo", "the image's own words"}, Env: env, Files: files},
		imagearchive.Image{Names: []string{pauseImage}, Entrypoint: []string{"/bin/busybox", "sleep", "1000000"}, Env: env, Files: files}); err != nil {
		c.t.Fatal(err)
	}
	file := c.dir + "/images.tar"
	if err := os.WriteFile(file, archive.Bytes(), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.has = c.client() // once it answers
	if out, err := exec.CommandContext(c.t.Context(), "ctr", "--address", c.socket, "--namespace", "k8s.io", "images", "import", "--snapshotter", "native", file).CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
}

// client returns what this node has in the runtime, and nothing of files.
func (c *containerd) client() *criruntime.Runtime {
	c.t.Helper()
	r, err := criruntime.New(context.Background(), criruntime.Config{Endpoint: c.endpoint(), Node: "node1", Dir: c.dir + "/none", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.t.Fatalf("%v\n%s", err, lastPart(c.stderr.String()))
	}
	return r
}

// sandboxes are the pods that the runtime has anything of.
func (c *containerd) sandboxes() []types.UID {
	c.t.Helper()
	pods, err := c.has.Pods(context.Background())
	if err != nil {
		c.t.Fatal(err)
	}
	return pods
}

// end removes all pods, and ends containerd.
func (c *containerd) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if c.has != nil {
		if err := c.removePods(ctx); err != nil {
			c.t.Errorf("pods are left: %v", err)
		}
		_ = c.has.Close()
	}
	_ = c.process.Process.Signal(os.Interrupt)
	<-c.ended
	cgroups, _ := filepath.Glob("/sys/fs/cgroup/*/k8s.io") // the parents of its pods' cgroups, which it leaves
	for _, dir := range cgroups {
		_ = os.Remove(dir) // unless another test's containers are in it
	}
	if c.t.Failed() {
		c.t.Logf("containerd said:\n%s", lastPart(c.stderr.String()))
	}
}

// removePods removes all pods. An agent that has ended may have asked the runtime to
// remove one, which goes on and refuses to begin anew meanwhile.
func (c *containerd) removePods(ctx context.Context) error {
	for {
		pods, err := c.has.Pods(ctx)
		if err != nil || len(pods) == 0 {
			return err
		}
		for _, pod := range pods {
			err = errors.Join(err, c.has.StopPod(ctx, pod), c.has.RemovePod(ctx, pod))
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func lastPart(text string) string { return text[max(0, len(text)-6000):] }

// newCRIWorld is a cluster with a node over a runtime.
func newCRIWorld(t *testing.T, c *containerd) *world {
	w := newWorld(t, nil, false)
	w.config.endpoint, w.config.hostNetwork = c.endpoint(), true
	return w
}

// log is what a container has printed in its first run, without times and streams.
func (w *world) log(pod *v1.Pod, container string) string {
	content, _ := os.ReadFile(filepath.Join(w.config.dir, "containers", string(pod.UID), container, "0.log"))
	var text strings.Builder
	for line := range strings.Lines(string(content)) {
		if words := strings.SplitN(line, " ", 4); len(words) == 4 {
			text.WriteString(words[3])
		}
	}
	return text.String()
}
