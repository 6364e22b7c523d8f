package criruntime

import (
	"context"
	"encoding/base64"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
)

func configJSON(text string) *v1.Secret {
	return &v1.Secret{Type: v1.SecretTypeDockerConfigJson, Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(text)}}
}

func configFile(text string) *v1.Secret {
	return &v1.Secret{Type: v1.SecretTypeDockercfg, Data: map[string][]byte{v1.DockerConfigKey: []byte(text)}}
}

// Which credentials are for which image.
func TestCredentials(t *testing.T) {
	as := func(user string) string { return `{"username":"` + user + `","password":"secret"}` }
	for name, test := range map[string]struct {
		image   string
		secrets []*v1.Secret
		users   []string
	}{
		"the registry's":              {"registry.example/app:1", []*v1.Secret{configJSON(`{"auths":{"registry.example":` + as("a") + `,"other.example":` + as("b") + `}}`)}, []string{"a"}},
		"of the older form":           {"registry.example/app", []*v1.Secret{configFile(`{"https://registry.example/v1/":` + as("a") + `}`)}, []string{"a"}},
		"the longest path first":      {"r.example/team/app", []*v1.Secret{configJSON(`{"auths":{"r.example":` + as("all") + `,"r.example/team":` + as("team") + `,"r.example/tea":` + as("no") + `}}`)}, []string{"team", "all"}},
		"a name before a star":        {"eu.r.example/app", []*v1.Secret{configJSON(`{"auths":{"*.r.example":` + as("star") + `,"eu.r.example":` + as("eu") + `}}`)}, []string{"eu", "star"}},
		"a star is one part":          {"a.b.r.example/app", []*v1.Secret{configJSON(`{"auths":{"*.r.example":` + as("star") + `}}`)}, nil},
		"the port counts":             {"r.example:5000/app", []*v1.Secret{configJSON(`{"auths":{"r.example":` + as("a") + `,"r.example:5000":` + as("b") + `}}`)}, []string{"b"}},
		"no registry is Docker's":     {"team/app@sha256:00", []*v1.Secret{configJSON(`{"auths":{"https://index.docker.io/v1/":` + as("hub") + `}}`)}, []string{"hub"}},
		"and so is its short name":    {"app", []*v1.Secret{configJSON(`{"auths":{"docker.io":` + as("hub") + `,"app":` + as("no") + `}}`)}, []string{"hub"}},
		"both in one word":            {"r.example/app", []*v1.Secret{configJSON(`{"auths":{"r.example":{"auth":"` + base64.StdEncoding.EncodeToString([]byte("a:b:c")) + `"}}}`)}, []string{"a"}},
		"of several secrets":          {"r.example/app", []*v1.Secret{configJSON(`{"auths":{"r.example":` + as("b") + `}}`), configJSON(`{"auths":{"r.example":` + as("a") + `}}`)}, []string{"a", "b"}},
		"what cannot be read is none": {"r.example/app", []*v1.Secret{configJSON(`{`), configJSON(`{"auths":{"r.example":{}}}`), configJSON(`{"auths":{"r.exampl[":` + as("a") + `}}`), {Type: v1.SecretTypeOpaque}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var users []string
			for _, auth := range credentialsFor(test.image, test.secrets) {
				users = append(users, auth.Username)
			}
			if !slices.Equal(users, test.users) {
				t.Errorf("got %v, want %v", users, test.users)
			}
		})
	}
	if auth := credentialsFor("r.example/app", []*v1.Secret{configJSON(`{"auths":{"r.example":{"auth":"YTpiOmM="}}}`)})[0]; auth.Password != "b:c" {
		t.Errorf("the password is %q", auth.Password)
	}
}

// userAt is the user as whom containerd pulls from a host: nobody where the credentials
// name a server, by a URL, that is another one.
func userAt(t *testing.T, host string, auth *cri.AuthConfig) string {
	t.Helper()
	if auth.ServerAddress == "" {
		return auth.Username
	}
	server, err := url.Parse(auth.ServerAddress)
	if err != nil {
		t.Errorf("containerd refuses the server's address: %v", err)
		return ""
	}
	if server.Host != host {
		return ""
	}
	return auth.Username
}

// Containerd uses the credentials, by whatever key they were found.
func TestCredentialsWithContainerd(t *testing.T) {
	for _, test := range []struct{ key, image, host string }{
		{"registry.example.com", "registry.example.com/app", "registry.example.com"},
		{"https://registry.example.com/v2/", "registry.example.com/app", "registry.example.com"},
		{"host:5000", "host:5000/app", "host:5000"},
		{"127.0.0.1:5000", "127.0.0.1:5000/app", "127.0.0.1:5000"},
		{"docker.io", "app", "registry-1.docker.io"},
		{"https://index.docker.io/v1/", "docker.io/team/app", "registry-1.docker.io"},
		{"*.example.com", "eu.example.com/app", "eu.example.com"},
	} {
		found := credentialsFor(test.image, []*v1.Secret{configJSON(`{"auths":{"` + test.key + `":{"username":"a","password":"secret"}}}`)})
		if len(found) != 1 {
			t.Errorf("%s for %s: %d credentials", test.key, test.image, len(found))
			continue
		}
		if user := userAt(t, test.host, found[0]); user != "a" {
			t.Errorf("%s for %s: containerd pulls as %q", test.key, test.image, user)
		}
	}
}

// registry is a runtime's images, which are pulled by one user.
type registry struct {
	cri.ImageServiceClient
	has    bool
	user   string // empty: anybody may
	pulled []string
}

func (r *registry) ImageStatus(context.Context, *cri.ImageStatusRequest, ...grpc.CallOption) (*cri.ImageStatusResponse, error) {
	if r.has {
		return &cri.ImageStatusResponse{Image: &cri.Image{Id: "id"}}, nil
	}
	return &cri.ImageStatusResponse{}, nil
}

func (r *registry) PullImage(_ context.Context, request *cri.PullImageRequest, _ ...grpc.CallOption) (*cri.PullImageResponse, error) {
	user := request.GetAuth().GetUsername()
	r.pulled = append(r.pulled, user)
	if r.user != "" && user != r.user {
		return nil, errors.New("user " + user + " may not pull it")
	}
	r.has = true
	return &cri.PullImageResponse{ImageRef: "id"}, nil
}

func TestPullPolicies(t *testing.T) {
	secrets := []*v1.Secret{configJSON(`{"auths":{"r.example/app":{"username":"near"},"r.example":{"username":"far"}}}`)}
	for name, test := range map[string]struct {
		has    bool
		user   string
		image  string
		policy v1.PullPolicy
		pulled []string
		reason string
		events string
	}{
		"present":               {true, "", "r.example/app:1", v1.PullIfNotPresent, nil, "", "Pulled"},
		"missing":               {false, "", "r.example/app:1", v1.PullIfNotPresent, []string{"near"}, "", "Pulling Pulled"},
		"by the second login":   {false, "far", "r.example/app:1", v1.PullIfNotPresent, []string{"near", "far"}, "", "Pulling Pulled"},
		"by none":               {false, "root", "r.example/app:1", v1.PullIfNotPresent, []string{"near", "far"}, "ErrImagePull", "Pulling"},
		"without a login":       {false, "", "other.example/app:1", v1.PullIfNotPresent, []string{""}, "", "Pulling Pulled"},
		"always":                {true, "", "r.example/app:1", v1.PullAlways, []string{"near"}, "", "Pulling Pulled"},
		"always, and refused":   {true, "root", "r.example/app:1", v1.PullAlways, []string{"near", "far"}, "ErrImagePull", "Pulling"},
		"never, and present":    {true, "", "r.example/app:1", v1.PullNever, nil, "", "Pulled"},
		"never, and missing":    {false, "", "r.example/app:1", v1.PullNever, nil, "ErrImageNeverPull", ""},
		"the latest by default": {true, "", "r.example/app", "", []string{"near"}, "", "Pulling Pulled"},
		"a tag by default":      {true, "", "r.example:5000/app:1", "", nil, "", "Pulled"},
		"a digest by default":   {true, "", "r.example/app@sha256:00", "", nil, "", "Pulled"},
	} {
		t.Run(name, func(t *testing.T) {
			images := &registry{has: test.has, user: test.user}
			var events []string
			l := podlife.Launch{Spec: &v1.Container{Image: test.image, ImagePullPolicy: test.policy},
				PullSecrets: func(context.Context) []*v1.Secret { return secrets },
				Tell:        func(_, reason, _ string) { events = append(events, reason) }}
			image, err := (&Runtime{images: images}).image(t.Context(), l, nil)
			reason := ""
			if own, ok := errors.AsType[*podlife.StartError](err); ok {
				reason = own.Reason
			}
			if reason != test.reason || (err == nil) != (image != nil) {
				t.Errorf("got %v, %v", image, err)
			}
			if !slices.Equal(images.pulled, test.pulled) || strings.Join(events, " ") != test.events {
				t.Errorf("pulled as %q, events %v", images.pulled, events)
			}
		})
	}
}
