package image_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/image"
)

func dockerConfig(at, user, password string) []byte {
	return fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, at, base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
}

func pullSecret(name, at, user, password string) *v1.Secret {
	return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{v1.DockerConfigJsonKey: dockerConfig(at, user, password)}}
}

// accounts are service accounts that all have one pull secret.
type accounts string

func (a accounts) GetServiceAccount(context.Context, string, string) (*v1.ServiceAccount, error) {
	return &v1.ServiceAccount{ImagePullSecrets: []v1.LocalObjectReference{{Name: string(a)}}}, nil
}

func TestPullSecrets(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.json")
	for name, test := range map[string]struct {
		config image.Config
		pod    []v1.LocalObjectReference
		node   string
		ok     bool
	}{
		"none":            {},
		"pod":             {pod: []v1.LocalObjectReference{{Name: "missing"}, {Name: "wrong"}, {Name: "right"}}, ok: true},
		"wrong":           {pod: []v1.LocalObjectReference{{Name: "wrong"}}},
		"service account": {config: image.Config{ServiceAccounts: accounts("right")}, ok: true},
		"node":            {config: image.Config{DockerConfig: config}, ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, test.config)
			n.registry.User, n.registry.Password, n.registry.Bearer = "robot", "hunter2", true
			n.registry.Add("web:1", file("f", "1"))
			n.Add(pullSecret("right", n.at, "robot", "hunter2"), pullSecret("wrong", n.at, "robot", "guess"))
			if err := os.WriteFile(config, dockerConfig(n.at, "robot", "hunter2"), 0o600); err != nil {
				t.Fatal(err)
			}
			pod := fakehost.Pod("p")
			pod.Spec.ImagePullSecrets = test.pod
			_, err := n.setUp(t.Context(), pod, "v", n.at+"/web:1", "")
			if (err == nil) != test.ok || err != nil && (!errors.Is(err, image.ErrUnauthorized) || !strings.Contains(err.Error(), "imagePullSecrets") || strings.Contains(err.Error(), "guess")) {
				t.Errorf("SetUp = %v", err)
			}
			missing := slices.Contains(n.reasons(), "FailedToRetrieveImagePullSecret")
			if missing != (len(test.pod) == 3) {
				t.Errorf("events %q", n.reasons())
			}
		})
	}
}

// Secrets are those of the pod's namespace: others may have the same name.
func TestSecretsOfTheNamespace(t *testing.T) {
	n := newNode(t, image.Config{})
	n.registry.User, n.registry.Password = "robot", "hunter2"
	n.registry.Add("web:1", file("f", "1"))
	opens, refused := pullSecret("registry", n.at, "robot", "hunter2"), pullSecret("registry", n.at, "robot", "guess")
	opens.Namespace, refused.Namespace = "shop", "default"
	n.Add(opens, refused)
	for _, s := range []*v1.Secret{refused, opens} {
		pod := fakehost.Pod("of-" + s.Namespace)
		pod.Namespace, pod.Spec.ImagePullSecrets = s.Namespace, []v1.LocalObjectReference{{Name: s.Name}}
		if _, err := n.setUp(t.Context(), pod, "v", n.at+"/web:1", ""); (err == nil) != (s == opens) {
			t.Errorf("namespace %s: %v", s.Namespace, err)
		}
	}
}

// An image that came by one pod's secret is not shown to a pod without, though it is on the
// node.
func TestPrivateImagesStayPrivate(t *testing.T) {
	n := newNode(t, image.Config{})
	n.registry.User, n.registry.Password = "robot", "hunter2"
	n.registry.Add("web:1", file("f", "1"))
	n.Add(pullSecret("right", n.at, "robot", "hunter2"))
	with := func(name string) *v1.Pod {
		pod := fakehost.Pod(name)
		pod.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "right"}}
		return pod
	}
	web := n.at + "/web:1"
	n.mustSetUp(t, with("owner"), "v", web, "")
	asked := len(n.registry.Asked(""))
	n.mustSetUp(t, with("friend"), "v", web, "")
	n.mustSetUp(t, with("quiet friend"), "v", web, v1.PullNever)
	if len(n.registry.Asked("")) != asked {
		t.Errorf("asked %q for pods with the secret", n.registry.Asked("")[asked:])
	}
	for policy, want := range map[v1.PullPolicy]error{v1.PullIfNotPresent: image.ErrUnauthorized, v1.PullNever: image.ErrImageNeverPull, v1.PullAlways: image.ErrUnauthorized} {
		if _, err := n.setUp(t.Context(), fakehost.Pod("stranger"+string(policy)), "v", web, policy); !errors.Is(err, want) {
			t.Errorf("%s: %v", policy, err)
		}
	}
	n.registry.User = "" // made public
	n.mustSetUp(t, fakehost.Pod("everyone"), "v", web, "")
	for _, path := range n.kept(t, "images") {
		if info, err := os.Stat(filepath.Join(n.GetPluginDir(image.PluginName), "images", path)); err == nil && info.Mode().IsRegular() {
			if text := content(t, filepath.Join(n.GetPluginDir(image.PluginName), "images", path)); strings.Contains(text, "hunter2") {
				t.Errorf("the record has the password: %s", text)
			}
		}
	}
}
