package csi

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// Keys that Kubernetes has for a driver's volume context.
const (
	keyPodName        = "csi.storage.k8s.io/pod.name"
	keyPodNamespace   = "csi.storage.k8s.io/pod.namespace"
	keyPodUID         = "csi.storage.k8s.io/pod.uid"
	keyServiceAccount = "csi.storage.k8s.io/serviceAccount.name"
	keyEphemeral      = "csi.storage.k8s.io/ephemeral"
	keyTokens         = "csi.storage.k8s.io/serviceAccount.tokens"
)

const (
	defaultTokenSeconds = 3600
	maxTokenUse         = 24 * time.Hour
	minTokenUse         = time.Minute
)

// podContext is the volume's attributes, and the pod's where the driver asks for them.
func podContext(s *source, t *driverSpec, pod *v1.Pod) map[string]string {
	c := maps.Clone(s.Attributes)
	if !t.podInfo {
		return c
	}
	if c == nil {
		c = make(map[string]string)
	}
	c[keyPodName], c[keyPodNamespace], c[keyPodUID] = pod.Name, pod.Namespace, string(pod.UID)
	c[keyServiceAccount], c[keyEphemeral] = pod.Spec.ServiceAccountName, strconv.FormatBool(s.Inline)
	return c
}

// tokens are the service account tokens of one pod's volume, as drivers get them.
type tokens struct {
	text   string   // JSON
	values []string // which errors must not hold
	due    time.Time
}

// issued keeps tokens until others are due. Its zero value is ready.
type issued struct {
	mu  sync.Mutex
	all map[issuedKey]*tokens
}

type issuedKey struct {
	pod    types.UID
	volume string
}

func (i *issued) get(key issuedKey, now time.Time) *tokens {
	i.mu.Lock()
	defer i.mu.Unlock()
	if t := i.all[key]; t != nil && now.Before(t.due) {
		return t
	}
	return nil
}

func (i *issued) put(key issuedKey, t *tokens) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.all == nil {
		i.all = make(map[issuedKey]*tokens)
	}
	if t == nil {
		delete(i.all, key)
		return
	}
	i.all[key] = t
}

// tokensFor returns the tokens that the driver asks for; nil: none. A failure has done
// nothing.
func (p *Plugin) tokensFor(ctx context.Context, volumeName string, t *driverSpec, pod *v1.Pod) (*tokens, error) {
	if len(t.tokens) == 0 {
		return nil, nil
	}
	key, now := issuedKey{pod.UID, volumeName}, time.Now()
	if kept := p.known.tokens.get(key, now); kept != nil {
		return kept, nil
	}
	requester, err := volume.Role[volume.TokenRequester](p.Host)
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	type told struct {
		Token      string    `json:"token"`
		Expiration time.Time `json:"expirationTimestamp"`
	}
	byAudience := make(map[string]told)
	fresh := &tokens{}
	for _, r := range t.tokens {
		seconds := int64(defaultTokenSeconds)
		if r.ExpirationSeconds != nil {
			seconds = *r.ExpirationSeconds
		}
		request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds,
			BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}}}
		if r.Audience != "" {
			request.Spec.Audiences = []string{r.Audience}
		}
		account := cmp.Or(pod.Spec.ServiceAccountName, "default")
		answer, err := requester.RequestToken(ctx, pod.Namespace, account, request)
		if err != nil {
			return nil, volume.NothingDone(fmt.Errorf("a token of service account %s/%s for the audience %q of driver volume %q: %w", pod.Namespace, account, r.Audience, volumeName, err))
		}
		expiry := answer.Status.ExpirationTimestamp.Time
		byAudience[r.Audience] = told{answer.Status.Token, expiry.UTC()}
		fresh.values = append(fresh.values, answer.Status.Token)
		if due := tokenDue(now, expiry); fresh.due.IsZero() || due.Before(fresh.due) {
			fresh.due = due
		}
	}
	text, err := json.Marshal(byAudience)
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	fresh.text = string(text)
	fresh.values = append(fresh.values, fresh.text)
	p.known.tokens.put(key, fresh)
	return fresh, nil
}

// tokenDue is the kubelet's time for another token: after 80 % of its life, at most a day.
func tokenDue(now, expiry time.Time) time.Time {
	use := min(expiry.Sub(now)*8/10, maxTokenUse)
	return now.Add(max(use, minTokenUse))
}
