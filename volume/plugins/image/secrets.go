package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/image/internal/registry"
	"github.com/podvol/podvol/volume/plugins/image/internal/store"
)

// user is a user of the registry, by whom the image is pulled.
type user struct {
	registry.Credentials
	// grant is what the image's record keeps: the secret's identity, nothing of its content.
	grant string
}

func grants(users []user) []string {
	all := make([]string, 0, len(users))
	for _, u := range users {
		if u.grant != store.Everyone {
			all = append(all, u.grant)
		}
	}
	return all
}

// users returns whose credentials are tried in turn: the pod's, its service account's, the
// node's, and none. Secrets that cannot be read are told by an event and left out, as by the
// kubelet: the image may need none.
func (p *pull) users(ctx context.Context) ([]user, error) {
	names, err := p.secretNames(ctx)
	if err != nil {
		return nil, err
	}
	var users []user
	var missing []string
	for _, name := range names {
		of, err := p.ofSecret(ctx, name)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			missing = append(missing, name)
		}
		users = append(users, of...)
	}
	if len(missing) > 0 {
		p.event(v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(missing, ", "))
	}
	node, err := p.ofNode()
	if err != nil {
		return nil, err
	}
	return append(append(users, node...), user{grant: store.Everyone}), nil
}

// secretNames returns the names of the pull secrets of the pod and its service account.
func (p *pull) secretNames(ctx context.Context) ([]string, error) {
	refs := p.Pod.Spec.ImagePullSecrets
	if account := p.Pod.Spec.ServiceAccountName; p.config.ServiceAccounts != nil && account != "" {
		a, err := p.config.ServiceAccounts.GetServiceAccount(ctx, p.Pod.Namespace, account)
		switch {
		case err == nil:
			refs = append(refs[:len(refs):len(refs)], a.ImagePullSecrets...)
		case !errors.Is(err, volume.ErrNotFound):
			return nil, fmt.Errorf("service account %s/%s: %w", p.Pod.Namespace, account, err)
		}
	}
	var names []string
	seen := make(map[string]bool)
	for _, r := range refs {
		if r.Name != "" && !seen[r.Name] {
			seen[r.Name] = true
			names = append(names, r.Name)
		}
	}
	return names, nil
}

// ofSecret returns the credentials of a secret for the image.
func (p *pull) ofSecret(ctx context.Context, name string) ([]user, error) {
	getter, err := volume.Role[volume.SecretGetter](p.Host)
	if err != nil {
		return nil, err
	}
	secret, err := getter.GetSecret(ctx, p.Pod.Namespace, name)
	if err != nil {
		return nil, err
	}
	data := secret.Data[v1.DockerConfigJsonKey]
	if data == nil {
		data = secret.Data[v1.DockerConfigKey]
	}
	ring, err := registry.ParseDockerConfig(data)
	grant := fmt.Sprintf("secret %s/%s %s/%s", secret.Namespace, secret.Name, secret.UID, secret.ResourceVersion)
	return p.usersOf(ring, grant), err
}

func (p *pull) ofNode() ([]user, error) {
	if p.config.DockerConfig == "" {
		return nil, nil
	}
	data, err := os.ReadFile(p.config.DockerConfig)
	if err != nil {
		return nil, fmt.Errorf("the node's registry credentials: %w", err)
	}
	ring, err := registry.ParseDockerConfig(data)
	if err != nil {
		return nil, fmt.Errorf("the node's registry credentials, %s: %w", p.config.DockerConfig, err)
	}
	return p.usersOf(ring, store.Everyone), nil
}

func (p *pull) usersOf(ring registry.Keyring, grant string) []user {
	var users []user
	for _, c := range ring.For(p.ref) {
		users = append(users, user{c, grant})
	}
	return users
}
