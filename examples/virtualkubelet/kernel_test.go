package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// container of the pod at the API server.
func (w *world) container(pod *v1.Pod) v1.ContainerStatus {
	if p := w.get(pod); p != nil && len(p.Status.ContainerStatuses) == 1 {
		return p.Status.ContainerStatuses[0]
	}
	return v1.ContainerStatus{}
}

// A container is a process that sees its volumes at its mount paths and its
// environment, and whose exit code arrives in its status. Its volumes go with its
// end, as those of terminal pods do.
func TestProcessSeesItsVolumes(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t, nil, false)
		job := pod("job", `cat /volumes/config/colour; echo; echo "$COLOUR as $NAME"; grep ' /volumes/memory ' /proc/mounts; echo x >/volumes/memory/x || exit 1; echo x >/volumes/config/x && exit 1; exit 3`,
			configVolume("config"), memoryVolume("memory"))
		job.Spec.Containers[0].VolumeMounts[0].ReadOnly = true
		job.Spec.Containers[0].Env = []v1.EnvVar{
			{Name: "COLOUR", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: v1.LocalObjectReference{Name: "config"}, Key: "colour"}}},
			{Name: "NAME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
		}
		w.create(configMap("config", "colour", "blue"), job)
		w.start()
		w.phase(job, v1.PodFailed)
		if ended := w.container(job).State.Terminated; ended == nil || ended.ExitCode != 3 || ended.Reason != "Error" {
			t.Errorf("ended: %v", ended)
		}
		if out := w.output(job); !strings.HasPrefix(out, "blue\nblue as job\ntmpfs /volumes/memory tmpfs ") {
			t.Errorf("it printed %q", out)
		}
		w.eventually("the volumes of a pod that has ended go", func() bool { return len(w.mounted()) == 0 })
		w.delete(job)
		w.gone(job)
		w.eventually("what it has printed goes with the pod", func() bool {
			left, err := os.ReadDir(filepath.Join(w.config.dir, "containers"))
			return err == nil && len(left) == 0
		})
		if _, err := os.Stat("/volumes"); err == nil {
			t.Error("the machine has got the mount points")
		}
	})
}

// A process's mounts have the options that its volumeMounts ask for, and it is of
// the group that a PersistentVolume says its files belong to. An ordinary user's
// process cannot be given groups, which is said and not passed over.
func TestProcessHasOptionsAndGroups(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t, nil, false)
		pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "disk", UID: "uid-disk", Annotations: map[string]string{"pv.beta.kubernetes.io/gid": "2345"}},
			Spec: v1.PersistentVolumeSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, ClaimRef: &v1.ObjectReference{Namespace: "shop", Name: "data", UID: "uid-data"},
				PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: t.TempDir()}}},
			Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound}}
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "uid-data"},
			Spec:   v1.PersistentVolumeClaimSpec{AccessModes: pv.Spec.AccessModes, VolumeName: "disk"},
			Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound}}
		script := `id -G; grep ' /volumes/[dm]' /proc/mounts`
		volumes := []v1.Volume{memoryVolume("memory"), {Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		plain, grouped := pod("plain", script, volumes[0]), pod("grouped", script, volumes...)
		for _, p := range []*v1.Pod{plain, grouped} {
			if !kubeapi.Set(&p.Spec.Containers[0].VolumeMounts[0], "BindMountOptions", []string{"noexec", "nosuid", "nodev"}) {
				t.Skip("this minor of k8s.io/api has no bindMountOptions")
			}
		}
		w.create(pv, claim, plain, grouped)
		w.start()
		w.phase(plain, v1.PodSucceeded)
		if out := w.output(plain); strings.Contains(out, "2345") || !strings.Contains(out, " /volumes/memory tmpfs rw,nosuid,nodev,noexec,") {
			t.Errorf("the plain one printed %q", out)
		}
		if strings.HasSuffix(t.Name(), "/"+string(nstest.User)) {
			w.phase(grouped, v1.PodFailed)
			if ended := w.container(grouped).State.Terminated; ended.Reason != "ContainerCannotRun" || !strings.Contains(ended.Message, "groups") {
				t.Errorf("ended: %v", ended)
			}
			return
		}
		w.phase(grouped, v1.PodSucceeded)
		groups, mounts, _ := strings.Cut(w.output(grouped), "\n")
		if !slices.Contains(strings.Fields(groups), "2345") || !strings.Contains(mounts, " /volumes/memory tmpfs rw,nosuid,nodev,noexec,") || !strings.Contains(mounts, " /volumes/data ") {
			t.Errorf("it printed %q", w.output(grouped))
		}
	})
}

// A process that runs sees what becomes of its config map.
func TestProcessSeesUpdates(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t, nil, false)
		web := pod("web", `until grep -q red /volumes/config/colour; do sleep 0.05; done`, configVolume("config"))
		w.create(configMap("config", "colour", "blue"), web)
		w.start()
		w.phase(web, v1.PodRunning)
		if _, err := w.api.CoreV1().ConfigMaps("shop").Update(t.Context(), configMap("config", "colour", "red"), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.phase(web, v1.PodSucceeded)
	})
}

// A deleted pod's process may end politely, is killed otherwise, and its volumes
// stay until it has ended.
func TestProcessIsStopped(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t, nil, false)
		last := filepath.Join(t.TempDir(), "last")
		polite := pod("polite", `trap 'cat /volumes/memory/x >`+last+`; exit 7' TERM; echo bye >/volumes/memory/x; echo up; while :; do sleep 0.05; done`, memoryVolume("memory"))
		polite.Spec.TerminationGracePeriodSeconds = new(int64(20))
		deaf := pod("deaf", `trap '' TERM; echo up; while :; do sleep 0.05; done`, memoryVolume("memory"))
		deaf.Spec.TerminationGracePeriodSeconds = new(int64(1))
		w.create(polite, deaf)
		w.start()
		for _, p := range []*v1.Pod{polite, deaf} {
			w.eventually("it is up", func() bool { return w.output(p) == "up\n" })
		}
		w.delete(polite)
		w.eventually("it has ended by itself", func() bool {
			word, _ := os.ReadFile(last)
			return string(word) == "bye\n"
		})
		w.delete(deaf)
		w.gone(deaf)
		w.eventually("nothing is mounted any more", func() bool { return len(w.mounted()) == 0 })
	})
}

// What ends is started again if the pod wants it; sub-paths are bound anew.
func TestProcessIsRestarted(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t, nil, false)
		web := pod("web", `echo run >>/volumes/memory/runs; exit 1`, memoryVolume("memory"))
		web.Spec.RestartPolicy = v1.RestartPolicyAlways
		web.Spec.Containers[0].VolumeMounts[0].SubPath = "part"
		w.create(web)
		w.start()
		w.eventually("it waits for its restart", func() bool {
			s := w.container(web)
			return s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff" && s.LastTerminationState.Terminated.ExitCode == 1
		})
		w.eventually("it was started again", func() bool { return w.container(web).RestartCount >= 1 })
		w.eventually("the volume is the same", func() bool { return strings.HasPrefix(w.file(web, "empty-dir", "memory/part/runs"), "run\nrun\n") })
		w.delete(web)
		w.gone(web)
	})
}

// Processes end with the provider. The next one says so, starts those again whose
// restart policy wants it, and finds the volumes as they were.
func TestProcessesEndWithTheProvider(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t, nil, false)
		script := `echo run >>/volumes/memory/runs; echo up; sleep 1000`
		always, never, goes := pod("always", script, memoryVolume("memory")), pod("never", script, memoryVolume("memory")), pod("goes", script, memoryVolume("memory"))
		always.Spec.RestartPolicy = v1.RestartPolicyAlways
		pods := []*v1.Pod{always, never, goes}
		for _, p := range pods {
			w.create(p)
		}
		w.start()
		for _, p := range pods {
			w.eventually("it is up", func() bool { return w.output(p) == "up\n" && w.get(p).Status.Phase == v1.PodRunning })
		}
		w.stop()
		for _, p := range pods {
			if s := w.container(p); s.State.Running == nil {
				t.Errorf("the provider's end has changed the status of pod %s: %v", p.Name, s.String())
			}
		}
		if m := w.mounted(); len(m) != 3 {
			t.Errorf("mounted while the provider is down: %v", m)
		}
		w.delete(goes)
		w.start()
		w.phase(never, v1.PodFailed)
		if s := w.container(never).State.Terminated; s.ExitCode != 137 || s.Reason != "ContainerStatusUnknown" || !strings.Contains(s.Message, "ended with") {
			t.Errorf("never: %v", s)
		}
		w.gone(goes)
		w.eventually("the other one runs again", func() bool {
			s := w.container(always)
			return s.RestartCount == 1 && s.State.Running != nil && s.LastTerminationState.Terminated.ExitCode == 137
		})
		w.eventually("with the volume that it had", func() bool { return w.file(always, "empty-dir", "memory/runs") == "run\nrun\n" })
		w.delete(always)
		w.gone(always)
	})
}

// A program that is not there is a failure of the container, and says so.
func TestProgramIsMissing(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t, nil, false)
		web := pod("web", "", memoryVolume("memory"))
		web.Spec.Containers[0].Command = []string{"/no/such/program"}
		w.create(web)
		w.start()
		w.eventually("the status says why", func() bool {
			s := w.container(web)
			return s.State.Terminated != nil && strings.Contains(s.State.Terminated.Message, "/no/such/program")
		})
		w.phase(web, v1.PodFailed)
		w.eventually("an event says why", func() bool { return w.event(web, "Failed", "/no/such/program") })
	})
}

// What would be another thing than the pod asks for is refused.
func TestRefusedPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil, false)
	w.start()
	for name, change := range map[string]func(*v1.Pod){
		"init containers": func(p *v1.Pod) { p.Spec.InitContainers = []v1.Container{{Name: "init"}} },
		"no command":      func(p *v1.Pod) { p.Spec.Containers[0].Command = nil },
		"as root": func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(0))}
		},
		"raw device": func(p *v1.Pod) {
			p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "disk", DevicePath: "/dev/x"}}
		},
	} {
		p := pod(strings.ReplaceAll(name, " ", "-"), "true")
		change(p)
		w.create(p)
		w.phase(p, v1.PodFailed)
		if s := w.get(p).Status; !strings.Contains(s.Message, strings.Fields(name)[0]) {
			t.Errorf("%s: %s", name, s.Message)
		}
	}
}
