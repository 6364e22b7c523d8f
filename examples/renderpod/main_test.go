package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func contents(t *testing.T, archive io.Reader) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			all[h.Name] = string(text)
		}
	}
}

// The pod of the tour, from its manifest.
func TestAPodOfAManifest(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out, "", "../../testdata/tour.yaml", ""); err != nil {
		t.Fatal(err)
	}
	got := contents(t, &out)
	if got["volumes/config/colour"] != "blue" || got["volumes/secret/password"] != "only-an-example" || !strings.Contains(got["environment/guide.json"], `{"name":"COLOUR","value":"blue"}`) {
		t.Errorf("%q", got)
	}
	for _, wrong := range []string{"", "none.yaml", "../../testdata"} {
		if err := run(t.Context(), &out, "", wrong, ""); err == nil {
			t.Errorf("-f %q was taken", wrong)
		}
	}
}

// A pod whose objects a clientset has. A value with lines is one variable still, init
// containers have an environment, and a volume without files is a directory.
func TestAPodOfACluster(t *testing.T) {
	clientset := fake.NewClientset(
		&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "tls"}, Data: map[string][]byte{"key": []byte("k")}},
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("4")}}},
		&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Spec: v1.ServiceSpec{ClusterIP: "10.0.0.1"}})
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: v1.PodSpec{
		NodeName: "node1",
		Volumes: []v1.Volume{
			{Name: "tls", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "tls"}}},
			{Name: "none", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "none", Optional: new(true)}}},
			{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		},
		InitContainers: []v1.Container{{Name: "init", Env: []v1.EnvVar{{Name: "TEXT", Value: "a\nPATH=/b"}}}},
		Containers: []v1.Container{{Name: "c", Env: []v1.EnvVar{{Name: "CPU", ValueFrom: &v1.EnvVarSource{
			ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.cpu"}}}}}},
	}}
	services, err := servicesFor(t.Context(), clientset, "shop")
	if err != nil {
		t.Fatal(err)
	}
	all, err := agentOf(clientset, pod, services).render(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"volumes/tls/key":       "k",
		"environment/init.json": `[{"name":"TEXT","value":"a\nPATH=/b"},{"name":"KUBERNETES_SERVICE_HOST","value":"10.0.0.1"}]`,
		"environment/c.json":    `[{"name":"CPU","value":"4"},{"name":"KUBERNETES_SERVICE_HOST","value":"10.0.0.1"}]`,
	}
	got := make(map[string]string)
	for p, f := range all.Files {
		got[p] = string(f.Data)
	}
	if diff := cmp.Diff(want, got); diff != "" || !slices.Equal(all.Dirs, []string{"volumes/none"}) {
		t.Errorf("-want +got:\n%s\ndirectories %q", diff, all.Dirs)
	}
}

// All that is missing is said at once.
func TestAllThatIsMissing(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: v1.PodSpec{Volumes: []v1.Volume{
		{Name: "a", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "first"}}},
		{Name: "b", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "second"}}},
	}}}
	_, err := agentOf(fake.NewClientset(), pod, nil).render(t.Context(), pod)
	if err == nil || !strings.Contains(err.Error(), "first") || !strings.Contains(err.Error(), "second") {
		t.Errorf("%v", err)
	}
}
