package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
)

// Credentials are a user of a registry. The zero value is an anonymous one.
type Credentials struct {
	Username, Password string
	// IdentityToken is what some registries give out instead of a password.
	IdentityToken string
}

func (c Credentials) basic() string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(c.Username+":"+c.Password))
}

// mask takes the secrets out of what a stranger says: also the token that he gave.
func (c *Client) mask(text string, ref oci.Reference) string {
	c.mu.Lock()
	token := strings.TrimPrefix(c.token[ref.Name()], "Bearer ")
	c.mu.Unlock()
	for _, secret := range []string{c.credentials.IdentityToken, c.credentials.Password, strings.TrimPrefix(c.credentials.basic(), "Basic "), token} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return text
}

// authorize returns the Authorization header for a repository, by the challenges of its
// registry.
func (c *Client) authorize(ctx context.Context, ref oci.Reference, challenges []string) (string, error) {
	for _, challenge := range challenges {
		scheme, rest, _ := strings.Cut(strings.TrimSpace(challenge), " ")
		switch strings.ToLower(scheme) {
		case "bearer":
			return c.bearer(ctx, ref, parameters(rest))
		case "basic":
			if c.credentials.Username != "" || c.credentials.Password != "" {
				return c.credentials.basic(), nil
			}
		}
	}
	return "", fmt.Errorf("%w to %s without credentials", ErrUnauthorized, ref.Name())
}

// parameters reads the parameters of a challenge. Commas stand inside quotes, too.
func parameters(text string) map[string]string {
	found := make(map[string]string)
	for text != "" {
		name, rest, ok := strings.Cut(text, "=")
		if !ok {
			break
		}
		var value string
		if quoted, is := strings.CutPrefix(rest, `"`); is {
			value, rest, _ = strings.Cut(quoted, `"`)
			_, text, _ = strings.Cut(rest, ",")
		} else {
			value, text, _ = strings.Cut(rest, ",")
		}
		found[strings.ToLower(strings.TrimSpace(name))] = value
	}
	return found
}

// bearer asks the token service of a registry for a token to pull a repository.
func (c *Client) bearer(ctx context.Context, ref oci.Reference, challenge map[string]string) (string, error) {
	realm, err := url.Parse(challenge["realm"])
	registry, _ := url.Parse(c.base(ref))
	if err != nil || realm.Host == "" || realm.Scheme != "https" && registry.Scheme == "https" {
		return "", fmt.Errorf("the registry names the token service %.200q, which is no https URL", challenge["realm"])
	}
	form := url.Values{"service": {challenge["service"]}, "scope": {"repository:" + ref.Path + ":pull"}}
	q, err := c.tokenRequest(ctx, realm, form)
	if err != nil {
		return "", err
	}
	r, err := c.answer(q)
	if err != nil {
		return "", fmt.Errorf("token service of the registry: %w", err)
	}
	defer r.Body.Close()
	if r.StatusCode == http.StatusUnauthorized || r.StatusCode == http.StatusForbidden {
		return "", fmt.Errorf("%w to %s (the token service %s answers %d)", ErrUnauthorized, ref.Name(), realm.Host, r.StatusCode)
	}
	var answer struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	// what it says is not shown: it could be a token
	if r.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&answer) != nil || answer.Token+answer.AccessToken == "" {
		return "", fmt.Errorf("the token service %s answers %d, and gives no token", realm.Host, r.StatusCode)
	}
	if answer.Token == "" {
		answer.Token = answer.AccessToken
	}
	return "Bearer " + answer.Token, nil
}

func (c *Client) tokenRequest(ctx context.Context, realm *url.URL, form url.Values) (*http.Request, error) {
	if c.credentials.IdentityToken != "" {
		form.Set("grant_type", "refresh_token")
		form.Set("refresh_token", c.credentials.IdentityToken)
		form.Set("client_id", "podvol")
		q, err := http.NewRequestWithContext(ctx, http.MethodPost, realm.String(), strings.NewReader(form.Encode()))
		if err == nil {
			q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		return q, err
	}
	at := *realm
	at.RawQuery = form.Encode()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err == nil && c.credentials != (Credentials{}) {
		q.Header.Set("Authorization", c.credentials.basic())
	}
	return q, err
}
