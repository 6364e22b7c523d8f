package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// mainVar makes the test binary the command itself.
const mainVar = "PODVOL_TEST_MAIN"

func TestMain(m *testing.M) {
	sandbox.Main()
	if os.Getenv(mainVar) != "" {
		main()
		os.Exit(0)
	}
	if err := testtool.MoreAtOnce(); err != nil {
		panic(err)
	}
	noleak.Main(m)
}

// world is a cluster with one node, which is started and stopped.
type world struct {
	t       *testing.T
	api     *api
	config  config
	stopped func()
}

// newWorld makes a node that mounts by mounter and, with hold, runs nothing.
func newWorld(t *testing.T, mounter mount.Interface, hold bool) *world {
	a := newAPI()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	return &world{t: t, api: a, config: config{api: a, name: "node1", dir: t.TempDir(), address: "192.0.2.1", hold: hold, mounter: mounter, log: log, pause: time.Second}}
}

// newFakeWorld mounts on the fake, and runs nothing.
func newFakeWorld(t *testing.T) *world {
	mounter := fakemount.New()
	t.Cleanup(func() { mounter.Close() })
	return newWorld(t, mounter, true)
}

// start starts the node, and stops it at the end of the test if stop does not.
func (w *world) start() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx, w.config) }()
	w.stopped = func() {
		w.stopped = func() {}
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	}
	w.t.Cleanup(w.stop)
}

func (w *world) stop() { w.stopped() }

// pod makes a pod of one container that runs a shell script.
func pod(name, script string, volumes ...v1.Volume) *v1.Pod {
	c := v1.Container{Name: "main", Image: "none", Command: []string{"/bin/sh", "-c", script}}
	for _, v := range volumes {
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/volumes/" + v.Name})
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": name}},
		Spec: v1.PodSpec{NodeName: "node1", RestartPolicy: v1.RestartPolicyNever, Containers: []v1.Container{c}, Volumes: volumes,
			TerminationGracePeriodSeconds: new(int64(2))},
	}
}

func configVolume(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}}}}
}

func memoryVolume(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}}
}

func labelsVolume(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
		{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}}}
}

func configMap(name, key, value string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}, Data: map[string]string{key: value}}
}

func (w *world) create(objects ...any) {
	w.t.Helper()
	for _, object := range objects {
		var err error
		switch o := object.(type) {
		case *v1.Pod:
			_, err = w.api.CoreV1().Pods(o.Namespace).Create(w.t.Context(), o, metav1.CreateOptions{})
		case *v1.PersistentVolume:
			_, err = w.api.CoreV1().PersistentVolumes().Create(w.t.Context(), o, metav1.CreateOptions{})
		case *v1.PersistentVolumeClaim:
			_, err = w.api.CoreV1().PersistentVolumeClaims(o.Namespace).Create(w.t.Context(), o, metav1.CreateOptions{})
		case *v1.ConfigMap:
			_, err = w.api.CoreV1().ConfigMaps(o.Namespace).Create(w.t.Context(), o, metav1.CreateOptions{})
		default:
			err = fmt.Errorf("%T cannot be created here", o)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) delete(pod *v1.Pod) {
	w.t.Helper()
	if err := w.api.CoreV1().Pods(pod.Namespace).Delete(w.t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// get returns the pod at the API server, or nil.
func (w *world) get(pod *v1.Pod) *v1.Pod {
	object, err := w.api.Tracker().Get(v1.SchemeGroupVersion.WithResource("pods"), pod.Namespace, pod.Name)
	if err != nil {
		return nil
	}
	return object.(*v1.Pod)
}

// eventually waits for what the API server, the mount table or a file will show.
func (w *world) eventually(what string, is func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !is(); {
		if time.Now().After(deadline) {
			pods, _ := w.config.api.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
			for _, p := range pods.Items {
				w.t.Logf("pod %s: %s", p.Name, p.Status.String())
			}
			w.t.Fatalf("not within two minutes: %s\nmounted: %v", what, w.mounted())
		}
		time.Sleep(20 * time.Millisecond) // the world is looked at from outside of it
	}
}

func (w *world) phase(pod *v1.Pod, want v1.PodPhase) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("pod %s is %s", pod.Name, want), func() bool { p := w.get(pod); return p != nil && p.Status.Phase == want })
}

// gone waits until the API server has nothing of the pod, nor the node of its volumes.
func (w *world) gone(pod *v1.Pod) {
	w.t.Helper()
	w.eventually("pod "+pod.Name+" is gone", func() bool { return w.get(pod) == nil })
	w.eventually("its volumes are gone", func() bool { _, err := os.Stat(w.podDir(pod)); return errors.Is(err, os.ErrNotExist) })
}

func (w *world) podDir(pod *v1.Pod) string {
	return filepath.Join(w.config.dir, "volumes", "pods", string(pod.UID))
}

// file is what a pod sees of a volume.
func (w *world) file(pod *v1.Pod, plugin, path string) string {
	content, _ := os.ReadFile(filepath.Join(w.podDir(pod), "volumes", "kubernetes.io~"+plugin, path))
	return string(content)
}

// file0 is a file of the node's.
func (w *world) file0(path string) string {
	content, _ := os.ReadFile(filepath.Join(w.config.dir, path))
	return string(content)
}

// output is what the container has printed.
func (w *world) output(pod *v1.Pod) string {
	content, _ := os.ReadFile(filepath.Join(w.config.dir, "containers", string(pod.UID), "main.log"))
	return string(content)
}

// mounted are the mount points below the node's directory.
func (w *world) mounted() (points []string) {
	mounter := w.config.mounter
	if mounter == nil {
		mounter = host.New(host.Config{})
	}
	all, err := mounter.List()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range all {
		if strings.HasPrefix(p.Path, w.config.dir) {
			points = append(points, p.Path)
		}
	}
	return points
}

// event reports whether a pod has an event of that reason whose message has text.
func (w *world) event(pod *v1.Pod, reason, text string) bool {
	events, err := w.api.CoreV1().Events(pod.Namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return false
	}
	for _, e := range events.Items {
		if e.InvolvedObject.Name == pod.Name && e.Reason == reason && strings.Contains(e.Message, text) {
			return true
		}
	}
	return false
}

func condition(pod *v1.Pod, kind v1.PodConditionType) v1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.PodCondition{}
}
