package image_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/ociimage"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/image"
)

// foreign are another's registry, and its name.
func foreign(t *testing.T) (*ociimage.Registry, string) {
	t.Helper()
	r := &ociimage.Registry{}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return r, strings.TrimPrefix(server.URL, "http://")
}

// Who knows no more than the digests of a private image that is on the node does not come to its
// files by a registry of his own that names them.
func TestDigestsOpenNothing(t *testing.T) {
	secret := file("f", "secret")
	blob := ociimage.Gzip(ociimage.Tar(secret.Entries...))
	for name, hostile := range map[string]func(r *ociimage.Registry, manifest string){
		"the image's": func(r *ociimage.Registry, manifest string) {
			r.Intercept = func(w http.ResponseWriter, q *http.Request) bool {
				w.Header().Set("Docker-Content-Digest", manifest)
				return q.Method == http.MethodHead
			}
		},
		"the layer's": func(r *ociimage.Registry, _ string) {
			r.Add("web:1", ociimage.Layer{Entries: secret.Entries, Blob: []byte("x"), Digest: ociimage.Digest(blob), Size: int64(len(blob))})
		},
		"the layer's, of an artifact": func(r *ociimage.Registry, _ string) {
			r.AddManifest("web:1", `{"schemaVersion":2,"config":{"mediaType":"text/plain"},"layers":[{"mediaType":"`+ociimage.LayerType+
				`","digest":"`+ociimage.Digest(blob)+`","size":1}]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, image.Config{})
			n.registry.User, n.registry.Password = "robot", "hunter2"
			manifest := n.registry.Add("web:1", secret)
			n.Add(pullSecret("right", n.at, "robot", "hunter2"))
			owner := fakehost.Pod("owner")
			owner.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "right"}}
			n.mustSetUp(t, owner, "v", n.at+"/web:1", "")
			r, at := foreign(t)
			hostile(r, manifest)
			for i, reference := range []string{at + "/web:1", at + "/web@" + manifest} {
				path, err := n.setUp(t.Context(), fakehost.Pod([]string{"thief", "other thief"}[i]), "v", reference, v1.PullAlways)
				if got, read := os.ReadFile(filepath.Join(path, "f")); err == nil || read == nil {
					t.Errorf("%s shows %q, and SetUp = %v", reference, got, err)
				}
			}
			if _, err := n.setUp(t.Context(), fakehost.Pod("stranger"), "v", n.at+"/web:1", ""); err == nil {
				t.Error("the image is public now")
			}
		})
	}
}
