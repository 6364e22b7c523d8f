package registry

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
)

// Keyring has credentials by registry, as in Docker's config.json.
type Keyring struct{ entries []entry }

type entry struct {
	host, path  string
	credentials Credentials
}

// ParseDockerConfig reads a config.json, or the older file that is the part auths of it
// alone. The error shows nothing of it.
func ParseDockerConfig(data []byte) (Keyring, error) {
	type auth struct{ Username, Password, Auth, IdentityToken string }
	var config struct{ Auths map[string]auth }
	err := json.Unmarshal(data, &config)
	if err == nil && config.Auths == nil {
		err = json.Unmarshal(data, &config.Auths)
	}
	if err != nil {
		return Keyring{}, errors.New("it is no JSON of Docker's config.json")
	}
	var k Keyring
	for at, a := range config.Auths {
		e := entry{credentials: Credentials{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken}}
		if both, err := base64.StdEncoding.DecodeString(strings.TrimSpace(a.Auth)); err == nil && a.Auth != "" {
			e.credentials.Username, e.credentials.Password, _ = strings.Cut(strings.TrimRight(string(both), "\x00"), ":")
		}
		e.host, e.path = place(at)
		k.entries = append(k.entries, e)
	}
	slices.SortFunc(k.entries, func(a, b entry) int { // the most specific first
		return cmp.Or(cmp.Compare(len(b.path), len(a.path)), cmp.Compare(len(b.host), len(a.host)), strings.Compare(a.host+a.path, b.host+b.path))
	})
	return k, nil
}

// place returns the registry of an entry, and the beginning of the repositories there.
func place(at string) (host, path string) {
	if _, rest, has := strings.Cut(at, "://"); has {
		at = rest
	}
	host, path, _ = strings.Cut(strings.TrimRight(at, "/"), "/")
	if path == "v1" || path == "v2" {
		path = ""
	}
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = "docker.io"
	}
	return host, path
}

// For returns the credentials that are for an image, the most specific first.
func (k Keyring) For(ref oci.Reference) []Credentials {
	var found []Credentials
	for _, e := range k.entries {
		if matchesHost(e.host, ref.Domain) && (e.path == "" || ref.Path == e.path || strings.HasPrefix(ref.Path, e.path+"/")) {
			found = append(found, e.credentials)
		}
	}
	return found
}

// matchesHost reports whether a host is meant, of which each label may have a pattern, as
// in *.registry.io.
func matchesHost(pattern, host string) bool {
	patterns, labels := strings.Split(pattern, "."), strings.Split(host, ".")
	if len(patterns) != len(labels) {
		return false
	}
	for i, p := range patterns {
		if ok, err := path.Match(p, labels[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
