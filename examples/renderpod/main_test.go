package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/podfiles"
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
	if got["volumes/config/colour"] != "blue" || got["volumes/secret/password"] != "only-an-example" || !slices.Contains(strings.Split(got["environment/guide"], "\n"), "COLOUR=blue") {
		t.Errorf("%q", got)
	}
	for _, wrong := range []string{"", "none.yaml", "../../testdata"} {
		if err := run(t.Context(), &out, "", wrong, ""); err == nil {
			t.Errorf("-f %q was taken", wrong)
		}
	}
}

// A pod whose objects a clientset has.
func TestAPodOfACluster(t *testing.T) {
	clientset := fake.NewClientset(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "tls"}, Data: map[string][]byte{"key": []byte("k")}})
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: v1.PodSpec{
		Volumes: []v1.Volume{
			{Name: "tls", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "tls"}}},
			{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		},
		Containers: []v1.Container{{Name: "c", Env: []v1.EnvVar{{Name: "POD", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}}},
	}}
	all, err := render(t.Context(), pod, podfiles.Sources{Objects: cluster.Read(clientset)})
	if err != nil {
		t.Fatal(err)
	}
	if string(all.Files["volumes/tls/key"].Data) != "k" || string(all.Files["environment/c"].Data) != "POD=web\n" || len(all.Files) != 2 {
		t.Errorf("%v", all)
	}
}
