package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/mounttest"
)

// Pods with user namespaces have ids that no other pod has, also after the agent has been
// started again. Volumes and the node's own files have the owners that the pod sees.
func TestUserNamespaces(t *testing.T) {
	withNewContainerd(t, func(t *testing.T, c *containerd) {
		w := newCRIWorld(t, c)
		w.config.hostNetwork = false
		script := `set -e
cd /volumes/memory
cat /proc/self/uid_map /proc/self/gid_map >maps
stat -c %u:%g /volumes/config/colour /etc/hosts /dev/termination-log . >seen
echo own >>/etc/hosts
echo bye >/dev/termination-log
touch done
until test -e /volumes/memory/end; do sleep 0.05; done`
		create := func(name string) *v1.Pod {
			p := inImage(pod(name, script, memoryVolume("memory"), configVolume("config")))
			p.Spec.HostUsers = new(false)
			w.create(p)
			return p
		}
		ids := func(p *v1.Pod) string {
			t.Helper()
			w.phase(p, v1.PodRunning)
			w.eventually(p.Name+" has looked around", func() bool {
				_, err := os.Stat(filepath.Join(w.podDir(p), "volumes/kubernetes.io~empty-dir/memory/done"))
				return err == nil
			})
			return strings.Join(strings.Fields(w.file(p, "empty-dir", "memory/maps")), " ")
		}
		w.create(configMap("config", "colour", "blue"))
		first, second := create("first"), create("second")
		w.start()
		a, b := ids(first), ids(second)
		if all := []string{"0 65536 65536 0 65536 65536", "0 131072 65536 0 131072 65536"}; !(a == all[0] && b == all[1] || a == all[1] && b == all[0]) {
			t.Errorf("ids of the pods: %q, %q", a, b)
		}
		if seen := strings.Join(strings.Fields(w.file(first, "empty-dir", "memory/seen")), " "); seen != "0:0 0:0 0:0 0:0" {
			t.Errorf("the pod sees as owners %s", seen)
		}
		if info, err := os.Stat(filepath.Join(w.podDir(first), "volumes/kubernetes.io~empty-dir/memory/done")); err != nil || info.Sys().(*syscall.Stat_t).Uid != 0 {
			t.Errorf("a file that the pod's root has made: %v, %v", info, err)
		}
		w.stop()
		w.start()
		third := create("third")
		if got := ids(third); got != "0 196608 65536 0 196608 65536" {
			t.Errorf("ids of the pod after a new start: %q", got)
		}
		if err := os.WriteFile(filepath.Join(w.podDir(first), "volumes/kubernetes.io~empty-dir/memory/end"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		w.phase(first, v1.PodSucceeded)
		if s := w.container(first); s.State.Terminated == nil || s.State.Terminated.Message != "bye\n" {
			t.Errorf("last words: %s", s.String())
		}
		w.delete(first)
		w.gone(first)
		w.eventually("the ids are free", func() bool { return len(c.sandboxes()) == 2 })
		if again := ids(create("fourth")); again != a {
			t.Errorf("ids that were free again: %q, and not %q", again, a)
		}
		w.stop()
	})
}

// A mount inside a recursively read-only one is read-only too.
func TestRecursivelyReadOnlyMounts(t *testing.T) {
	withNewContainerd(t, func(t *testing.T, c *containerd) {
		w := newCRIWorld(t, c)
		w.config.hostNetwork = false
		host := t.TempDir()
		if err := os.Mkdir(host+"/inner", 0o777); err != nil {
			t.Fatal(err)
		}
		mounttest.Mount(t, mounttest.Tmpfs(host+"/inner", "mode=777"))
		var pods []*v1.Pod
		for name, mode := range map[string]v1.RecursiveReadOnlyMode{"enabled": v1.RecursiveReadOnlyEnabled, "possible": v1.RecursiveReadOnlyIfPossible, "disabled": v1.RecursiveReadOnlyDisabled} {
			p := inImage(pod(name, `touch /volumes/host/file; touch /volumes/host/inner/$0; echo $?`, v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}}))
			p.Spec.Containers[0].Command = append(p.Spec.Containers[0].Command, name)
			p.Spec.Containers[0].VolumeMounts[0].ReadOnly, p.Spec.Containers[0].VolumeMounts[0].RecursiveReadOnly = true, &mode
			w.create(p)
			pods = append(pods, p)
		}
		w.start()
		for _, p := range pods {
			w.phase(p, v1.PodSucceeded)
		}
		written, err := filepath.Glob(host + "/inner/*")
		if err != nil || len(written) != 1 || filepath.Base(written[0]) != "disabled" {
			t.Errorf("written to the mount inside: %q, %v", written, err)
		}
		w.stop()
	})
}

// A container is stopped with the signal that its pod names.
func TestStopSignalIsSent(t *testing.T) {
	withNewContainerd(t, func(t *testing.T, c *containerd) {
		w := newCRIWorld(t, c)
		host := t.TempDir()
		p := inImage(pod("web", `trap 'echo asked >/volumes/host/word; exit 0' USR1; touch /volumes/host/ready; while :; do sleep 0.05; done`,
			v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}}))
		p.Spec.TerminationGracePeriodSeconds = new(int64(60))
		p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{StopSignal: new(v1.SIGUSR1)}
		w.create(p)
		w.start()
		w.eventually("it waits for the signal", func() bool { _, err := os.Stat(host + "/ready"); return err == nil })
		w.delete(p)
		w.gone(p)
		if word, err := os.ReadFile(host + "/word"); err != nil || string(word) != "asked\n" {
			t.Errorf("it said %q, %v", word, err)
		}
		w.stop()
	})
}
