package criruntime

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
)

// The cgroups are those of a kubelet's drivers.
func TestCgroupParent(t *testing.T) {
	for _, tc := range []struct {
		driver string
		class  v1.PodQOSClass
		want   string
	}{
		{"", v1.PodQOSBurstable, ""},
		{"cgroupfs", v1.PodQOSGuaranteed, "/kubepods/poda-b"},
		{"cgroupfs", v1.PodQOSBurstable, "/kubepods/burstable/poda-b"},
		{"cgroupfs", v1.PodQOSBestEffort, "/kubepods/besteffort/poda-b"},
		{"systemd", v1.PodQOSGuaranteed, "/kubepods.slice/kubepods-poda_b.slice"},
		{"systemd", v1.PodQOSBestEffort, "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poda_b.slice"},
	} {
		r := &Runtime{Config: Config{CgroupDriver: tc.driver}}
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a-b"}, Status: v1.PodStatus{QOSClass: tc.class}}
		if got := r.cgroupParent(pod); got != tc.want {
			t.Errorf("%s, %s: %s, want %s", tc.driver, tc.class, got, tc.want)
		}
	}
	if checkCgroupDriver("other") == nil {
		t.Error("another driver is taken")
	}
}

// What has no node's label is a kubelet's. Of a known pod it is this node's; without one
// it is only for a node that takes over.
func TestWhoseSandboxes(t *testing.T) {
	kubelets := map[string]string{podUIDLabel: "a"}
	own, others := map[string]string{podUIDLabel: "a", nodeLabel: "node1"}, map[string]string{podUIDLabel: "a", nodeLabel: "node2"}
	for _, tc := range []struct {
		name        string
		labels      map[string]string
		adopt       bool
		own, listed bool
	}{
		{"own", own, false, true, true},
		{"own, taking over", own, true, true, true},
		{"another node's", others, true, false, false},
		{"a kubelet's", kubelets, false, true, false},
		{"a kubelet's, taking over", kubelets, true, true, true},
		{"of no pod, taking over", nil, true, true, false},
	} {
		r := &Runtime{Config: Config{Node: "node1", Adopt: tc.adopt}}
		if own, listed := r.isOwn(tc.labels), r.isListed(tc.labels); own != tc.own || listed != tc.listed {
			t.Errorf("%s: own %t, listed %t", tc.name, own, listed)
		}
	}
}

// A kubelet keeps a container that has these annotations. The hash was seen on containers
// of kubelet v1.37.2.
func TestContainerAnnotations(t *testing.T) {
	got := containerAnnotations(podlife.Launch{Attempt: 2, Pod: &v1.Pod{Spec: v1.PodSpec{TerminationGracePeriodSeconds: new(int64(7))}}, Spec: &v1.Container{
		Name: "first", Image: "podvol.test/busybox:1", TerminationMessagePolicy: v1.TerminationMessageReadFile,
		Lifecycle: &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"end"}}}},
		Ports:     []v1.ContainerPort{{ContainerPort: 80, Protocol: v1.ProtocolTCP}},
	}})
	for name, want := range map[string]string{
		"io.kubernetes.container.hash":                     "8a43eba",
		"io.kubernetes.container.restartCount":             "2",
		"io.kubernetes.container.terminationMessagePath":   "/dev/termination-log",
		"io.kubernetes.container.terminationMessagePolicy": "File",
		"io.kubernetes.container.preStopHandler":           `{"exec":{"command":["end"]}}`,
		"io.kubernetes.container.ports":                    `[{"containerPort":80,"protocol":"TCP"}]`,
		"io.kubernetes.pod.terminationGracePeriod":         "7",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

// What a kubelet has left below the root goes, but nothing of volumes.
func TestRemoveKubelets(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root[1]") // whose name is a pattern
	const uid = types.UID("a-b")
	pod := filepath.Join(root, "pods", string(uid))
	for _, file := range []string{"etc-hosts", "containers/main/0a1b", "volumes/kubernetes.io~empty-dir/data/file"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(pod, file)), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(pod, file), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := &Runtime{Config: Config{RootDir: root}}
	if err := r.removeKubelets(uid, nil); err != nil {
		t.Fatal(err)
	}
	left, err := entriesOf(pod)
	if err != nil || len(left) != 1 || left[0] != pod+"/volumes" {
		t.Errorf("left are %q, %v", left, err)
	}
	if _, err := os.Stat(pod + "/volumes/kubernetes.io~empty-dir/data/file"); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(pod + "/volumes/kubernetes.io~empty-dir/data"); err != nil {
		t.Fatal(err)
	}
	if err := r.removeKubelets(uid, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(pod); !os.IsNotExist(err) {
		t.Errorf("the pod's directory is left: %v", err)
	}
}

// The cgroups of a pod go with those of its containers, in all hierarchies. One with
// something in it stays, and is an error.
func TestRemoveCgroups(t *testing.T) {
	mounted := t.TempDir()
	make := func(path string) string {
		dir := filepath.Join(mounted, path)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	make("memory/kubepods/burstable/poda-b/left-by-runc")
	make("kubepods/poda-b")
	others := make("memory/kubepods/burstable/podother/container")
	if err := removeCgroups(mounted, "a-b"); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(mounted + "/*/*/*/pod*")
	if err != nil || len(left) != 1 || left[0] != filepath.Dir(others) {
		t.Errorf("left are %q, %v", left, err)
	}
	make("memory/kubepods/burstable/podother/container/nested")
	if removeCgroups(mounted, "other") == nil {
		t.Error("what cannot be removed is no error")
	}
}
