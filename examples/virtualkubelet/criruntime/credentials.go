package criruntime

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dockerHub is where images are whose names have no registry.
const dockerHub = "index.docker.io"

// login is what a secret has for one registry, or for a part of it.
type login struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"` // base64 of both, with a colon between them
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// credentialsFor returns the credentials for an image that secrets have, the ones for the
// longest part of its name first, as the kubelet has them. A secret that cannot be read
// has none.
func credentialsFor(image string, secrets []*v1.Secret) (all []*cri.AuthConfig) {
	type match struct {
		place registryPlace
		auth  *cri.AuthConfig
	}
	var found []match
	of := placeOfImage(image)
	for _, secret := range secrets {
		for key, l := range loginsOf(secret) {
			place := placeOfKey(key)
			if auth := l.config(); auth != nil && place.covers(of) {
				found = append(found, match{place, auth})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b match) int {
		return cmp.Or(cmp.Compare(len(b.place.path), len(a.place.path)), cmp.Compare(strings.Count(a.place.host, "*"), strings.Count(b.place.host, "*")),
			cmp.Compare(a.place.host, b.place.host), cmp.Compare(a.auth.Username, b.auth.Username))
	})
	for _, m := range found {
		all = append(all, m.auth)
	}
	return all
}

func loginsOf(secret *v1.Secret) map[string]login {
	switch secret.Type {
	case v1.SecretTypeDockerConfigJson:
		var file struct {
			Auths map[string]login `json:"auths"`
		}
		if json.Unmarshal(secret.Data[v1.DockerConfigJsonKey], &file) == nil {
			return file.Auths
		}
	case v1.SecretTypeDockercfg:
		var file map[string]login
		if json.Unmarshal(secret.Data[v1.DockerConfigKey], &file) == nil {
			return file
		}
	}
	return nil
}

// config is the login in the words of CRI; nil: there is none. Like a kubelet's it names no
// server: containerd takes it for none where its own name of the registry is another one,
// such as registry-1.docker.io or a mirror's.
func (l login) config() *cri.AuthConfig {
	user, password := l.Username, l.Password
	if both, err := base64.StdEncoding.DecodeString(l.Auth); err == nil && user == "" && l.Auth != "" {
		user, password, _ = strings.Cut(string(both), ":")
	}
	password = strings.Trim(password, "\x00")
	if user == "" && l.IdentityToken == "" && l.RegistryToken == "" {
		return nil
	}
	return &cri.AuthConfig{Username: user, Password: password, IdentityToken: l.IdentityToken, RegistryToken: l.RegistryToken}
}

// registryPlace is a registry, or a part of one.
type registryPlace struct{ host, path string }

// placeOfImage is where an image is, without its tag and digest.
func placeOfImage(image string) registryPlace {
	image, _, _ = strings.Cut(image, "@")
	first, rest, hasPath := strings.Cut(image, "/")
	if !hasPath || !strings.ContainsAny(first, ".:") && first != "localhost" {
		return registryPlace{dockerHub, withoutTag(image)}
	}
	return registryPlace{withName(first), withoutTag(rest)}
}

func withoutTag(name string) string {
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[:i]
	}
	return name
}

// placeOfKey is what a login is for: a host, or a URL as docker writes it, in which a star
// stands for a part of the host's name.
func placeOfKey(key string) registryPlace {
	if _, rest, ok := strings.Cut(key, "://"); ok {
		key = rest
	}
	host, path, _ := strings.Cut(key, "/")
	path = strings.Trim(path, "/")
	for _, version := range []string{"v1", "v2"} {
		if path == version || strings.HasPrefix(path, version+"/") {
			path = strings.Trim(path[len(version):], "/")
			break
		}
	}
	return registryPlace{withName(host), path}
}

// withName gives the one registry that has several names one.
func withName(host string) string {
	if host == "docker.io" || host == "registry-1.docker.io" {
		return dockerHub
	}
	return host
}

// covers reports whether a login is for an image.
func (p registryPlace) covers(image registryPlace) bool {
	if p.path != "" && image.path != p.path && !strings.HasPrefix(image.path, p.path+"/") {
		return false
	}
	host, port, _ := strings.Cut(p.host, ":")
	imageHost, imagePort, _ := strings.Cut(image.host, ":")
	parts, imageParts := strings.Split(host, "."), strings.Split(imageHost, ".")
	if port != imagePort || len(parts) != len(imageParts) {
		return false
	}
	for i := range parts {
		if same, err := path.Match(parts[i], imageParts[i]); err != nil || !same {
			return false
		}
	}
	return true
}
