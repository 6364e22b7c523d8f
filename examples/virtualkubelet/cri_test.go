package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/kubeletapi"
)

// inImage makes the pod's containers of the test's image.
func inImage(p *v1.Pod) *v1.Pod {
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Image = testImage
	}
	for i := range p.Spec.InitContainers {
		p.Spec.InitContainers[i].Image = testImage
	}
	return p
}

// A container sees all kinds of volumes at their paths, with its environment, ids and
// groups, and what it prints and says last is kept.
func TestContainerSeesItsVolumes(t *testing.T) {
	withContainerd(t, func(t *testing.T, c *containerd) {
		w := newCRIWorld(t, c)
		host := t.TempDir()
		if err := os.WriteFile(host+"/file", []byte("of the host\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		job := inImage(pod("job", `cat /volumes/config/colour; echo; cat /volumes/host/file; cat /part; echo; cat /volumes/about/labels; echo; echo "$COLOUR as $NAME"; id -u; id -G; \
echo mine >/volumes/memory/x && cat /volumes/memory/x; echo x 2>/dev/null >/volumes/config/x && echo written; touch /root-is-writable 2>/dev/null && echo written; \
grep -c Kubernetes /etc/hosts; echo "last words" >/dev/termination-log; exit 3`,
			configVolume("config"), memoryVolume("memory"), labelsVolume("about"),
			v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}}))
		main := &job.Spec.Containers[0]
		main.VolumeMounts = append(main.VolumeMounts, v1.VolumeMount{Name: "config", MountPath: "/part", SubPath: "colour"})
		main.Env = []v1.EnvVar{
			{Name: "COLOUR", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "config"}, Key: "colour"}}},
			{Name: "NAME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		}
		main.SecurityContext = &v1.SecurityContext{ReadOnlyRootFilesystem: new(true)}
		job.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: new(int64(1234)), RunAsGroup: new(int64(2345)), FSGroup: new(int64(3456))}
		w.create(configMap("config", "colour", "blue"), job)
		w.start()
		w.phase(job, v1.PodFailed)
		ended := w.container(job).State.Terminated
		if ended == nil || ended.ExitCode != 3 || ended.Reason != "Error" || ended.Message != "last words\n" {
			t.Errorf("ended: %v", ended)
		}
		want := "blue\nof the host\nblue\napp=\"job\"\nblue as job\n1234\n2345 3456\nmine\n1\n"
		if got := w.log(job, "main"); got != want {
			t.Errorf("it printed %q, want %q", got, want)
		}
		w.eventually("the volumes of a pod that has ended go", func() bool { return len(w.mounted()) == 0 })
		w.delete(job)
		w.gone(job)
		w.eventually("what it has printed goes with the pod", func() bool {
			left, err := os.ReadDir(filepath.Join(w.config.dir, "containers"))
			return err == nil && len(left) == 0 && len(c.sandboxes()) == 0
		})
		w.stop()
	})
}

// Init containers run one after the other, one that may be restarted goes on beside the
// others, and ends after them.
func TestInitContainers(t *testing.T) {
	withContainerd(t, func(t *testing.T, c *containerd) {
		w := newCRIWorld(t, c)
		always := v1.ContainerRestartPolicyAlways
		log := func(word string) []string {
			return []string{"/bin/sh", "-c", "echo " + word + " >>/volumes/memory/order; " + map[string]string{"beside": `trap 'echo beside-ends >>/volumes/memory/order; exit 0' TERM; while :; do sleep 0.05; done`}[word]}
		}
		web := inImage(pod("web", `echo main >>/volumes/memory/order; cat /volumes/memory/order; sleep 0.5; echo main-ends >>/volumes/memory/order`, memoryVolume("memory")))
		mounts := web.Spec.Containers[0].VolumeMounts
		for _, name := range []string{"first", "beside", "second"} {
			init := v1.Container{Name: name, Image: testImage, Command: log(name), VolumeMounts: mounts}
			if name == "beside" {
				init.RestartPolicy = &always
			}
			web.Spec.InitContainers = append(web.Spec.InitContainers, init)
		}
		kept := t.TempDir()
		web.Spec.Volumes[0].VolumeSource = v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: kept}}
		w.create(web)
		w.start()
		w.phase(web, v1.PodSucceeded)
		order, _ := os.ReadFile(kept + "/order")
		got := strings.Join(strings.Fields(string(order)), " ")
		if got != "first beside second main main-ends beside-ends" && got != "first second beside main main-ends beside-ends" {
			t.Errorf("in the order %s", got)
		}
		for _, s := range w.get(web).Status.InitContainerStatuses {
			if s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 {
				t.Errorf("%s: %v", s.Name, s.State)
			}
		}
		w.stop()
	})
}

// A variable may come from a file that an init container writes into an emptyDir.
func TestEnvironmentOfAFile(t *testing.T) {
	withContainerd(t, func(t *testing.T, c *containerd) {
		w := newCRIWorld(t, c)
		web := inImage(pod("web", `echo "$WORD"`, memoryVolume("memory")))
		main := &web.Spec.Containers[0]
		main.Env = append(main.Env, v1.EnvVar{Name: "WORD", ValueFrom: &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: "memory", Path: "env", Key: "SAID"}}})
		web.Spec.InitContainers = []v1.Container{{Name: "writer", Image: testImage, Command: []string{"/bin/sh", "-c", `echo "SAID='by the other'" >/volumes/memory/env`}, VolumeMounts: main.VolumeMounts}}
		w.create(web)
		w.start()
		w.phase(web, v1.PodSucceeded)
		if got := w.log(web, "main"); got != "by the other\n" {
			t.Errorf("it printed %q", got)
		}
		w.stop()
	})
}

// What fails its liveness probe is restarted; what is not ready says so; a startup probe
// comes before both.
func TestProbes(t *testing.T) {
	withContainerd(t, func(t *testing.T, c *containerd) {
		w := newCRIWorld(t, c)
		web := inImage(pod("web", `echo run >>/volumes/memory/runs; rm -f /volumes/memory/ready; sleep 1000`, memoryVolume("memory")))
		web.Spec.RestartPolicy = v1.RestartPolicyAlways
		exec := func(script string) v1.ProbeHandler {
			return v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{"/bin/sh", "-c", script}}}
		}
		const unhurried = 600 // seconds: a busy machine is no failure
		main := &web.Spec.Containers[0]
		main.StartupProbe = &v1.Probe{ProbeHandler: exec("test -e /volumes/memory/started"), PeriodSeconds: 1, FailureThreshold: 1000, TimeoutSeconds: unhurried}
		main.LivenessProbe = &v1.Probe{ProbeHandler: exec("! test -e /volumes/memory/ill"), PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: unhurried, TerminationGracePeriodSeconds: new(int64(1))}
		main.ReadinessProbe = &v1.Probe{ProbeHandler: exec("test -e /volumes/memory/ready"), PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: unhurried}
		w.create(web)
		w.start()
		write := func(name string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(w.podDir(web), "volumes/kubernetes.io~empty-dir/memory", name), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		w.eventually("a probe fails", func() bool { return w.event(web, "Unhealthy", "Startup probe failed") })
		if s := w.container(web); s.Started == nil || *s.Started || s.Ready || s.State.Running == nil {
			t.Errorf("before its startup probe: %v", s.String())
		}
		write("started")
		w.eventually("it has started", func() bool { s := w.container(web); return s.Started != nil && *s.Started })
		if s := condition(w.get(web), v1.PodReady); s.Status != v1.ConditionFalse || s.Message != "containers with unready status: [main]" {
			t.Errorf("ready: %v", s)
		}
		write("ready")
		w.eventually("it is ready", func() bool { return condition(w.get(web), v1.PodReady).Status == v1.ConditionTrue })
		write("ill")
		w.eventually("it is restarted", func() bool { return w.container(web).RestartCount >= 1 })
		if !w.event(web, "Killing", "failed liveness probe") {
			t.Error("nothing says why")
		}
		w.delete(web)
		w.gone(web)
		w.stop()
	})
}

// A hook runs before a container is asked to end, the object of the pod goes after its
// containers and volumes, and an ephemeral container runs in the pod meanwhile.
func TestDeletionOfContainers(t *testing.T) {
	withContainerd(t, func(t *testing.T, c *containerd) {
		w := newCRIWorld(t, c)
		kept := t.TempDir()
		web := inImage(pod("web", `trap 'echo asked >>/volumes/host/order; exit 0' TERM; echo started >>/volumes/host/order; while :; do sleep 0.05; done`,
			v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: kept}}}, memoryVolume("memory")))
		web.Spec.TerminationGracePeriodSeconds = new(int64(30))
		say := func(word string) *v1.LifecycleHandler {
			return &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"/bin/sh", "-c", "until test -e /volumes/host/order; do sleep 0.05; done; echo " + word + " >>/volumes/host/order"}}}
		}
		web.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: say("hooked"), PreStop: say("warned")}
		w.create(web)
		w.start()
		w.phase(web, v1.PodRunning)
		if used, err := c.has.Usage(t.Context()); err != nil || used[w.container(web).ContainerID].Memory == 0 || used[w.container(web).ContainerID].Time.IsZero() {
			t.Errorf("it uses %v, %v", used, err)
		}
		if url, err := c.has.ExecURL(t.Context(), strings.TrimPrefix(w.container(web).ContainerID, "containerd://"), []string{"true"}, kubeletapi.Streams{Out: true}); err != nil || !strings.HasPrefix(url, "http://127.0.0.1:") {
			t.Errorf("a command is served at %q, %v", url, err)
		}
		now := w.get(web).DeepCopy()
		now.Spec.EphemeralContainers = []v1.EphemeralContainer{{TargetContainerName: "main", EphemeralContainerCommon: v1.EphemeralContainerCommon{
			Name: "looking", Image: testImage, Command: []string{"/bin/sh", "-c", "cat /volumes/memory/x; ps | grep -c 'trap'"},
			VolumeMounts: []v1.VolumeMount{{Name: "memory", MountPath: "/volumes/memory"}}}}}
		if err := os.WriteFile(filepath.Join(w.podDir(web), "volumes/kubernetes.io~empty-dir/memory/x"), []byte("seen\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := w.api.CoreV1().Pods("shop").Update(t.Context(), now, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.eventually("the ephemeral container has ended", func() bool {
			s := w.get(web).Status.EphemeralContainerStatuses
			return len(s) == 1 && s[0].State.Terminated != nil && s[0].State.Terminated.ExitCode == 0
		})
		if out := w.log(web, "looking"); !strings.HasPrefix(out, "seen\n") || strings.HasSuffix(out, "\n0\n") {
			t.Errorf("it saw %q", out)
		}
		w.delete(web)
		w.eventually("the pod's object is gone", func() bool { return w.get(web) == nil })
		if m, s := w.mounted(), c.sandboxes(); len(m) > 0 {
			t.Errorf("the object went before volumes and containers: mounted %v, sandboxes %v", m, s)
		}
		order, _ := os.ReadFile(kept + "/order")
		if got := strings.Join(strings.Fields(string(order)), " "); got != "started hooked warned asked" {
			t.Errorf("in the order %s", got)
		}
		w.eventually("the sandbox goes", func() bool { return len(c.sandboxes()) == 0 })
		w.stop()
	})
}

// Containers go on without the agent, and the next one starts nothing twice. Those of
// pods that were deleted meanwhile end.
func TestContainersOutliveTheAgent(t *testing.T) {
	withContainerd(t, func(t *testing.T, c *containerd) {
		w := newCRIWorld(t, c)
		script := `echo run >>/volumes/memory/runs; sleep 1000`
		stays, ends, goes := inImage(pod("stays", script, memoryVolume("memory"))), inImage(pod("ends", `echo run >>/volumes/memory/runs; until test -e /volumes/memory/end; do sleep 0.05; done; exit 5`, memoryVolume("memory"))), inImage(pod("goes", script, memoryVolume("memory")))
		for _, p := range []*v1.Pod{stays, ends, goes} {
			w.create(p)
		}
		w.start()
		for _, p := range []*v1.Pod{stays, ends, goes} {
			w.phase(p, v1.PodRunning)
		}
		before := w.container(stays)
		w.stop()
		if m := w.mounted(); len(m) != 3 {
			t.Fatalf("mounted without the agent: %v", m)
		}
		if err := os.WriteFile(filepath.Join(w.podDir(ends), "volumes/kubernetes.io~empty-dir/memory/end"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := w.api.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "shop", "goes"); err != nil {
			t.Fatal(err)
		}
		w.start()
		w.phase(ends, v1.PodFailed)
		if s := w.container(ends); s.State.Terminated == nil || s.State.Terminated.ExitCode != 5 || s.RestartCount != 0 {
			t.Errorf("what ended without the agent: %v", s.String())
		}
		w.eventually("the deleted pod is gone", func() bool {
			left, err := os.ReadDir(filepath.Join(w.config.dir, "containers"))
			return err == nil && len(left) == 2 && len(c.sandboxes()) == 2 && len(w.mounted()) == 1
		})
		if s := w.container(stays); s.ContainerID != before.ContainerID || s.RestartCount != 0 || s.State.Running == nil || !s.State.Running.StartedAt.Equal(&before.State.Running.StartedAt) {
			t.Errorf("what stays was %v, and is %v", before.String(), s.String())
		}
		if runs := w.file(stays, "empty-dir", "memory/runs"); runs != "run\n" {
			t.Errorf("it was started again: %q", runs)
		}
		for _, p := range []*v1.Pod{stays, ends} {
			w.delete(p)
			w.gone(p)
		}
		w.eventually("nothing is left", func() bool { return len(c.sandboxes()) == 0 && len(w.mounted()) == 0 })
		w.stop()
	})
}

// The image's own words are run where the pod has none, an image that is not there is
// never pulled where the pod says so, and what the runtime lacks is refused by name.
func TestImagesAndRefusals(t *testing.T) {
	withContainerd(t, func(t *testing.T, c *containerd) {
		w := newCRIWorld(t, c)
		w.config.pause = 100 * time.Millisecond
		own, missing, user := inImage(pod("own", "")), pod("missing", ""), inImage(pod("user", "true"))
		own.Spec.Containers[0].Command = nil
		missing.Spec.Containers[0].Image, missing.Spec.Containers[0].ImagePullPolicy = "podvol.test/nothing:1", v1.PullNever
		user.Spec.HostUsers = new(false)
		root := inImage(pod("root", "true"))
		root.Spec.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: new(true)}
		signal := inImage(pod("signal", "true"))
		signal.Spec.Containers[0].Lifecycle = &v1.Lifecycle{StopSignal: new(v1.SIGUSR1)}
		for _, p := range []*v1.Pod{own, missing, user, root, signal} {
			w.create(p)
		}
		w.start()
		w.phase(own, v1.PodSucceeded)
		if out := w.log(own, "main"); out != "the image's own words\n" {
			t.Errorf("the image's command printed %q", out)
		}
		w.phase(user, v1.PodFailed)
		if m := w.get(user).Status.Message; !strings.Contains(m, "hostUsers") {
			t.Error(m)
		}
		for p, reason := range map[*v1.Pod]string{missing: "ErrImageNeverPull", root: "CreateContainerConfigError", signal: "CreateContainerConfigError"} {
			w.eventually(fmt.Sprintf("%s waits with %s", p.Name, reason), func() bool {
				waiting := w.container(p).State.Waiting
				return waiting != nil && waiting.Reason == reason
			})
		}
		w.stop()
	})
}

// An agent that is killed, at whatever moment, leaves its containers and volumes as they
// are. The next one starts nothing twice, and ends what was deleted meanwhile.
func TestContainersOutliveAKilledAgent(t *testing.T) {
	withContainerd(t, func(t *testing.T, c *containerd) {
		k := newKillable(t)
		k.flags = []string{"--runtime-endpoint", c.endpoint(), "--host-network"}
		script := `echo run >>/volumes/memory/runs; trap 'exit 0' TERM; while :; do sleep 0.05; done`
		stays, goes := k.create(inImage(pod("stays", script, memoryVolume("memory")))), k.create(inImage(pod("goes", script, memoryVolume("memory"))))
		k.start()
		for _, p := range []*v1.Pod{stays, goes} {
			k.eventually("pod "+p.Name+" runs", func() bool { phase, _ := k.status(p); return phase == v1.PodRunning })
		}
		_, before := k.status(stays)
		k.kill()
		if m, s := k.mounted(), c.sandboxes(); len(m) != 2 || len(s) != 2 {
			t.Fatalf("after it was killed: mounted %v, sandboxes %v", m, s)
		}
		k.delete(goes)
		for _, after := range []time.Duration{0, 30 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond, time.Second} {
			k.start()
			<-time.After(after)
			k.kill()
		}
		k.start()
		k.eventually("the deleted pod is gone", func() bool {
			left, err := os.ReadDir(filepath.Join(k.config.dir, "containers"))
			return err == nil && len(left) == 1 && len(c.sandboxes()) == 1 && len(k.mounted()) == 1
		})
		k.eventually("the other one goes on", func() bool { phase, _ := k.status(stays); return phase == v1.PodRunning })
		if _, s := k.status(stays); s.ContainerID != before.ContainerID || s.RestartCount != 0 || k.file(stays, "empty-dir", "memory/runs") != "run\n" {
			t.Errorf("it was %v, and is %v", before.String(), s.String())
		}
		k.delete(stays)
		k.eventually("nothing is left", func() bool { return len(c.sandboxes()) == 0 && len(k.mounted()) == 0 })
		_ = k.process.Process.Signal(syscall.SIGTERM)
		if err := k.process.Wait(); err != nil {
			t.Error(err)
		}
	})
}
