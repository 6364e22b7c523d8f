package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/containertest"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

// daemonSet is the pod of testdata/daemonset.yaml.
func daemonSet(t *testing.T) v1.PodSpec {
	t.Helper()
	manifest, err := os.ReadFile("testdata/daemonset.yaml")
	testtool.Must(t, err)
	for document := range bytes.SplitSeq(manifest, []byte("\n---\n")) {
		object, _, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
		testtool.Must(t, err)
		if set, ok := object.(*appsv1.DaemonSet); ok {
			return set.Spec.Template.Spec
		}
	}
	t.Fatal("the manifest has no DaemonSet")
	return v1.PodSpec{}
}

// The node in the container of its manifest mounts volumes that the host sees. The next one, as
// after an update of the DaemonSet, has them as they are, and takes them down. Without the
// manifest's mount propagation it says what is missing.
func TestNodeInAContainer(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAs(t, []nstest.Mode{nstest.Host}, func(t *testing.T) {
		for _, dir := range []string{"/var/lib", "/run"} {
			mounttest.Mount(t, mounttest.Tmpfs(dir, "mode=755"))
			mounttest.Mount(t, mount.Request{Target: dir, Options: []string{"rshared"}})
		}
		server := clustertest.NewServer()
		create := func(object metav1.Object) metav1.Object {
			made, err := server.Writer().Create(t.Context(), object)
			testtool.Must(t, err)
			return made
		}
		create(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "s"}, Data: map[string][]byte{"key": []byte("value")}})
		uid := create(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "web"}, Spec: v1.PodSpec{
			NodeName: "podvol-node1", Containers: []v1.Container{{Name: "c", Image: "i", VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
			Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}}}}}).GetUID()
		pods := make(chan struct{}, 1000)
		defer server.Store().WatchKind("Pod", func(volume.ObjectRef) { pods <- struct{}{} })()
		mounts := table.Kernel().Subscribe(t.Context())
		kubeconfig := clustertest.Serve(t, server)
		secret := "/var/lib/podvol-virtualkubelet/volumes/pods/" + string(uid) + "/volumes/kubernetes.io~secret/v"
		web := volume.NewObjectRef("Pod", "ops", "web")

		first := startNode(t, daemonSet(t), kubeconfig)
		await(t, pods, func() bool {
			pod, err := objects.Get[*v1.Pod](t.Context(), server.Store(), web)
			return err == nil && pod.Status.Phase == v1.PodRunning
		})
		if text, err := os.ReadFile(filepath.Join(secret, "key")); err != nil || string(text) != "value" {
			t.Errorf("the host sees %q, %v", text, err)
		}
		if text := first.stop(); strings.Contains(text, "mountPropagation") {
			t.Errorf("it warns of its mounts: %s", text)
		}
		if e, mounted := mounttest.EntryAt(t, secret); !mounted || e.FSType != "tmpfs" {
			t.Fatalf("the mount went with the container: %+v", e)
		}

		next := startNode(t, daemonSet(t), kubeconfig)
		testtool.Must(t, server.Writer().Delete(t.Context(), web, objects.Preconditions{}))
		await(t, mounts, func() bool { _, mounted := mounttest.EntryAt(t, secret); return !mounted })
		next.stop()

		lacking := daemonSet(t)
		lacking.Containers[0].VolumeMounts[0].MountPropagation = nil
		last := startNode(t, lacking, kubeconfig)
		await(t, last.lines, func() bool { return strings.Contains(last.text(), "mountPropagation: Bidirectional") })
		last.stop()
	})
}

// nodeContainer is the node in its container, which runs nothing.
type nodeContainer struct {
	t       *testing.T
	process *sandbox.Process
	cancel  context.CancelFunc
	lines   chan struct{}

	mu   sync.Mutex
	said bytes.Buffer
}

func startNode(t *testing.T, pod v1.PodSpec, kubeconfig string) *nodeContainer {
	t.Helper()
	n := &nodeContainer{t: t, lines: make(chan struct{}, 1000)}
	config := containertest.OfPod(t, pod, map[string]string{"spec.nodeName": "node1", "status.hostIP": "192.0.2.1"})
	config.Args = append(config.Args, "--hold")
	config.Mounts = append(config.Mounts, sandbox.Mount{Source: kubeconfig, Destination: "/kubeconfig", File: true})
	config.Env = append(config.Env, mainVar+"=1", "KUBECONFIG=/kubeconfig")
	config.Stderr = n
	ctx, cancel := context.WithCancel(t.Context())
	n.cancel = cancel
	var err error
	n.process, err = sandbox.Start(ctx, config)
	testtool.Must(t, err)
	t.Cleanup(func() { n.stop() })
	return n
}

// Write takes what the node says.
func (n *nodeContainer) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.said.Write(p)
	select {
	case n.lines <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (n *nodeContainer) text() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.said.String()
}

// stop kills the container, and returns what it has said.
func (n *nodeContainer) stop() string {
	n.cancel()
	n.process.Wait()
	return n.text()
}

// await waits for something to be so, looking after each change.
func await(t *testing.T, changes <-chan struct{}, so func() bool) {
	t.Helper()
	for !so() {
		select {
		case <-changes:
		case <-t.Context().Done():
			t.Fatal("the test has ended")
		}
	}
}
