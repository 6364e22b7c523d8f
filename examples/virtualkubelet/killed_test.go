package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

// killable is the command as a process of its own, at an API server on the network.
type killable struct {
	*world
	server     *clustertest.Server
	kubeconfig string
	flags      []string // further ones
	process    *exec.Cmd
}

func newKillable(t *testing.T) *killable {
	k := &killable{server: clustertest.NewServer(), kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	network := httptest.NewServer(inJSON(k.server))
	t.Cleanup(func() {
		k.server.DropWatches()
		network.Close()
	})
	set, err := kubernetes.NewForConfig(&rest.Config{Host: network.URL})
	if err != nil {
		t.Fatal(err)
	}
	k.world = &world{t: t, config: config{api: set, dir: t.TempDir()}}
	access := clientcmdapi.NewConfig()
	access.Clusters["test"] = &clientcmdapi.Cluster{Server: network.URL}
	access.Contexts["test"] = &clientcmdapi.Context{Cluster: "test"}
	access.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*access, k.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return k
}

// inJSON has a server that knows JSON alone understand what a client says in the
// API's binary encoding, as those of programs do.
func inJSON(server http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Content-Type") == runtime.ContentTypeProtobuf {
			body, err := io.ReadAll(r.Body)
			if err == nil && len(body) > 0 {
				var object runtime.Object
				if object, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil); err == nil {
					body, err = json.Marshal(object)
				}
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		server.ServeHTTP(w, r)
	})
}

// create returns the pod as the server has it, with its UID.
func (k *killable) create(pod *v1.Pod) *v1.Pod {
	k.t.Helper()
	created, err := k.server.Writer().Create(k.t.Context(), pod)
	if err != nil {
		k.t.Fatal(err)
	}
	return created.(*v1.Pod)
}

func (k *killable) delete(pod *v1.Pod) {
	k.t.Helper()
	if err := k.server.Writer().Delete(k.t.Context(), volume.NewObjectRef("Pod", pod.Namespace, pod.Name), objects.Preconditions{}); err != nil {
		k.t.Fatal(err)
	}
}

// status is what the server has; the zero one, if nothing.
func (k *killable) status(pod *v1.Pod) (phase v1.PodPhase, only v1.ContainerStatus) {
	p, err := objects.Get[*v1.Pod](context.Background(), k.server.Store(), volume.NewObjectRef("Pod", pod.Namespace, pod.Name))
	if err != nil || len(p.Status.ContainerStatuses) != 1 {
		return "", only
	}
	return p.Status.Phase, p.Status.ContainerStatuses[0]
}

func (k *killable) start() {
	k.t.Helper()
	c := exec.Command("/proc/self/exe", append([]string{"--kubeconfig", k.kubeconfig, "--nodename", "node1", "--dir", k.config.dir}, k.flags...)...)
	c.Env = append(os.Environ(), mainVar+"=1")
	c.Stderr = k.t.Output()
	if err := c.Start(); err != nil {
		k.t.Fatal(err)
	}
	k.process = c
	k.t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
}

func (k *killable) kill() {
	k.t.Helper()
	_ = k.process.Process.Kill()
	_ = k.process.Wait()
	if s := k.process.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL {
		k.t.Errorf("it ended before it was killed: %v", k.process.ProcessState)
	}
}

// noted is the number of the process that runs for a pod, or 0.
func (k *killable) noted(pod *v1.Pod) (pid int) {
	var boot string
	_, _ = fmt.Sscan(k.file0(filepath.Join("containers", string(pod.UID), "main.process")), &boot, &pid)
	return pid
}

// leave starts a process that holds a pod's volume and is noted as one of the
// provider's, and returns what waits for its end: as if the kernel had not killed
// it with the provider.
func (k *killable) leave(pod *v1.Pod) (ended func() error) {
	k.t.Helper()
	c := exec.Command("sleep", "1000")
	c.Dir = filepath.Join(k.podDir(pod), "volumes", "kubernetes.io~empty-dir", "memory")
	if err := c.Start(); err != nil {
		k.t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	stat, statErr := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Process.Pid))
	fields := strings.Fields(string(stat)) // sleep's name has no spaces
	noted := fmt.Appendf(nil, "%s %d %s", bytes.TrimSpace(boot), c.Process.Pid, fields[21])
	if err := errors.Join(err, statErr, os.WriteFile(filepath.Join(k.config.dir, "containers", string(pod.UID), "main.process"), noted, 0o600)); err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = c.Process.Kill() })
	return c.Wait
}

// A provider that is killed takes its processes along, and leaves its pods'
// volumes. The next one ends what may be left of the processes before volumes go
// or containers are started anew, keeps what pods still use, starts those again
// whose policy says so, and takes down what is of pods that are no more.
func TestProviderIsKilled(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		k := newKillable(t)
		script := `echo run >>/volumes/memory/runs; echo up; sleep 1000`
		always := pod("always", script, memoryVolume("memory"))
		always.Spec.RestartPolicy = v1.RestartPolicyAlways
		always = k.create(always)
		never, goes := k.create(pod("never", script, memoryVolume("memory"))), k.create(pod("goes", script, memoryVolume("memory")))
		pods := []*v1.Pod{always, never, goes}
		k.start()
		var pids []int
		for _, p := range pods {
			k.eventually("pod "+p.Name+" runs", func() bool { phase, _ := k.status(p); return k.output(p) == "up\n" && phase == v1.PodRunning })
			pids = append(pids, k.noted(p))
		}
		k.kill()
		for _, pid := range pids {
			k.eventually("its processes end with it", func() bool { return pid > 0 && syscall.Kill(pid, 0) == syscall.ESRCH })
		}
		if m := k.mounted(); len(m) != 3 {
			t.Fatalf("mounted after it was killed: %v", m)
		}

		var ended []func() error
		for _, p := range pods {
			ended = append(ended, k.leave(p))
		}
		k.delete(goes)
		k.start()
		for i, wait := range ended {
			if err := wait(); err == nil || !strings.Contains(err.Error(), "killed") {
				t.Errorf("the process that was left for pod %s: %v", pods[i].Name, err)
			}
		}
		k.eventually("the volumes of the deleted pod go", func() bool { _, err := os.Stat(k.podDir(goes)); return errors.Is(err, os.ErrNotExist) })
		k.eventually("the one has failed", func() bool { phase, _ := k.status(never); return phase == v1.PodFailed })
		if _, s := k.status(never); s.State.Terminated == nil || s.State.Terminated.ExitCode != 137 || s.RestartCount != 0 {
			t.Errorf("never: %v", s.String())
		}
		k.eventually("the other one runs again", func() bool {
			_, s := k.status(always)
			return s.RestartCount == 1 && s.State.Running != nil && s.LastTerminationState.Terminated.ExitCode == 137
		})
		k.eventually("with the volume that it had, and it alone has any", func() bool {
			return k.file(always, "empty-dir", "memory/runs") == "run\nrun\n" && len(k.mounted()) == 1
		})

		// Wherever else it is killed, nothing is lost, and nothing stays.
		for _, after := range []time.Duration{0, 30 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond} {
			k.kill()
			k.start()
			<-time.After(after)
		}
		k.kill()
		if m, runs := k.mounted(), k.file(always, "empty-dir", "memory/runs"); len(m) != 1 || !strings.HasPrefix(runs, "run\nrun\n") {
			t.Errorf("mounted: %v, with %q", m, runs)
		}
		k.start()
		k.eventually("it runs still", func() bool {
			_, s := k.status(always)
			return s.State.Running != nil && s.ContainerID == fmt.Sprintf("process://%d", k.noted(always))
		})
		k.delete(always)
		for _, p := range pods {
			k.eventually("all volumes go", func() bool { _, err := os.Stat(k.podDir(p)); return errors.Is(err, os.ErrNotExist) })
		}
		if m := k.mounted(); len(m) > 0 {
			t.Errorf("still mounted: %v", m)
		}
		_ = k.process.Process.Signal(syscall.SIGTERM)
		if err := k.process.Wait(); err != nil {
			t.Error(err)
		}
	})
}
