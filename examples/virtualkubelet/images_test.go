package main

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/ociimage"
)

const registryUser, registryPassword = "robot", "hunter2"

// privateImage starts a registry on the loopback, with one image of one file, and returns the
// image's reference and a docker config file that opens it.
func privateImage(t *testing.T) (reference string, credentials []byte) {
	t.Helper()
	registry := &ociimage.Registry{User: registryUser, Password: registryPassword}
	registry.Add("web:1", ociimage.Layer{Entries: []ociimage.Entry{{Name: "index", Content: "from the image"}}})
	server := httptest.NewServer(registry)
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://")
	auth := base64.StdEncoding.EncodeToString([]byte(registryUser + ":" + registryPassword))
	return at + "/web:1", fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, at, auth)
}

func imageVolume(name, reference string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: reference}}}
}

// createSecret creates what the pods' imagePullSecrets name.
func (w *world) createSecret(name string, credentials []byte) {
	w.t.Helper()
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: "uid-secret"},
		Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{v1.DockerConfigJsonKey: credentials}}
	if _, err := w.api.CoreV1().Secrets("shop").Create(w.t.Context(), secret, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// wantImageStatus wants one mount in a container's status, with the image's digest if the API
// has a field for it.
func wantImageStatus(t *testing.T, mounts []v1.VolumeMountStatus, volume string) {
	t.Helper()
	var none, digest v1.VolumeMountStatus
	kubeapi.SetImageRef(&digest, "known")
	text, err := json.Marshal(mounts)
	if err != nil {
		t.Fatal(err)
	}
	if len(mounts) != 1 || mounts[0].Name != volume || mounts[0].MountPath != "/volumes/"+volume ||
		strings.Contains(string(text), "@sha256:") == reflect.DeepEqual(digest, none) {
		t.Errorf("the status has the mounts %s", text)
	}
}

// An image volume is pulled with the pod's secrets, or with the credentials that
// --registry-config names, and a container sees its files.
func TestProcessSeesAnImage(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		for name, credit := range map[string]func(w *world, pod *v1.Pod, credentials []byte){
			"secret": func(w *world, pod *v1.Pod, credentials []byte) {
				w.createSecret("registry", credentials)
				pod.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "registry"}}
			},
			"node": func(w *world, _ *v1.Pod, credentials []byte) {
				file := filepath.Join(w.t.TempDir(), "config.json")
				if err := os.WriteFile(file, credentials, 0o600); err != nil {
					w.t.Fatal(err)
				}
				set := flag.NewFlagSet("virtualkubelet", flag.ContinueOnError)
				flags := w.config
				flags.flags(set)
				plain := []string{"one.test:5000", "two.test"}
				if err := set.Parse([]string{"--registry-config", file, "--insecure-registry", plain[0], "--insecure-registry", plain[1]}); err != nil {
					w.t.Fatal(err)
				}
				if w.config.images = flags.images; !slices.Equal(w.config.images.PlainHTTP, plain) {
					w.t.Errorf("without TLS are %q", w.config.images.PlainHTTP)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				reference, credentials := privateImage(t)
				w := newWorld(t, nil, false)
				w.config.images.ReservePercent = -1 // however full this machine is
				p := pod("web", "cat /volumes/site/index", imageVolume("site", reference))
				credit(w, p, credentials)
				w.create(p)
				w.start()
				w.phase(p, v1.PodSucceeded)
				if out := w.output(p); out != "from the image" {
					t.Errorf("it printed %q", out)
				}
				wantImageStatus(t, w.get(p).Status.ContainerStatuses[0].VolumeMounts, "site")
				w.eventually("the volume goes with the pod", func() bool { return len(w.mounted()) == 0 })
			})
		}
	})
}
