package localtoken_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/localtoken"
)

func boundTo(name string, uid types.UID) *authenticationv1.BoundObjectReference {
	return &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name, UID: uid}
}

func newIssuer(t *testing.T) *localtoken.Issuer {
	t.Helper()
	return localtoken.New(filepath.Join(t.TempDir(), "token.key"))
}

// The whole of a token, as a verifier sees it.
func TestTokenOfAPod(t *testing.T) {
	issuer := newIssuer(t)
	issuer.NodeName = "node1"
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(1500 * time.Millisecond) // between two whole seconds
		request := &authenticationv1.TokenRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "builder", Namespace: "ops"},
			Spec: authenticationv1.TokenRequestSpec{
				Audiences:         []string{"vault", "https://example.com"},
				ExpirationSeconds: new(int64(7200)),
				BoundObjectRef:    boundTo("web-0", "uid-of-web-0"),
			},
		}
		before := request.DeepCopy()
		result, err := issuer.RequestToken(t.Context(), "ops", "builder", request)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, request); diff != "" {
			t.Errorf("the request was changed (-before +after):\n%s", diff)
		}
		now := time.Now().Truncate(time.Second)
		want := before.DeepCopy()
		want.Status = authenticationv1.TokenRequestStatus{
			Token:               result.Status.Token,
			ExpirationTimestamp: metav1.NewTime(now.Add(2 * time.Hour)),
		}
		if diff := cmp.Diff(want, result); diff != "" {
			t.Errorf("result (-want +got):\n%s", diff)
		}

		claims := verify(t, issuer, result.Status.Token)
		id, _ := claims["jti"].(string)
		if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(id) {
			t.Errorf("jti = %q, want a random UUID", id)
		}
		account := dig(t, claims, "kubernetes.io", "serviceaccount", "uid").(string)
		wantClaims := map[string]any{
			"iss": "podvol.invalid",
			"sub": "system:serviceaccount:ops:builder",
			"aud": []any{"vault", "https://example.com"},
			"iat": float64(now.Unix()),
			"nbf": float64(now.Unix()),
			"exp": float64(now.Add(2 * time.Hour).Unix()),
			"jti": id,
			"kubernetes.io": map[string]any{
				"namespace":      "ops",
				"node":           map[string]any{"name": "node1"},
				"pod":            map[string]any{"name": "web-0", "uid": "uid-of-web-0"},
				"serviceaccount": map[string]any{"name": "builder", "uid": account},
			},
		}
		if diff := cmp.Diff(wantClaims, claims); diff != "" {
			t.Errorf("claims (-want +got):\n%s", diff)
		}
	})
}

func dig(t *testing.T, claims map[string]any, path ...string) any {
	t.Helper()
	var at any = claims
	for _, name := range path {
		object, ok := at.(map[string]any)
		if !ok || object[name] == nil {
			t.Fatalf("no claim %v in %v", path, claims)
		}
		at = object[name]
	}
	return at
}

func TestDefaults(t *testing.T) {
	issuer := newIssuer(t)
	result, err := issuer.RequestToken(t.Context(), "default", "default", &authenticationv1.TokenRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{localtoken.IssuerName}, result.Spec.Audiences); diff != "" {
		t.Errorf("audiences (-want +got):\n%s", diff)
	}
	if s := result.Spec.ExpirationSeconds; s == nil || *s != 3600 {
		t.Errorf("expirationSeconds = %v, want 3600", s)
	}
	claims := verify(t, issuer, result.Status.Token)
	if life := claims["exp"].(float64) - claims["iat"].(float64); life != 3600 {
		t.Errorf("the token lives for %v s, want 3600", life)
	}
	if _, bound := dig(t, claims, "kubernetes.io").(map[string]any)["pod"]; bound {
		t.Error("a token that is bound to no pod names one")
	}
}

func TestTokensDiffer(t *testing.T) {
	issuer := newIssuer(t)
	seen := map[any]bool{}
	for range 3 {
		result, err := issuer.RequestToken(t.Context(), "default", "default", &authenticationv1.TokenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		seen[verify(t, issuer, result.Status.Token)["jti"]] = true
	}
	if len(seen) != 3 {
		t.Errorf("three tokens have the identifiers %v", seen)
	}
}

func TestExpirationLimits(t *testing.T) {
	issuer := newIssuer(t)
	for _, tc := range []struct {
		seconds int64
		ok      bool
	}{
		{math.MinInt64, false}, {-1, false}, {0, false}, {599, false}, {600, true},
		{1 << 32, true}, {1<<32 + 1, false}, {math.MaxInt64, false},
	} {
		t.Run(fmt.Sprint(tc.seconds), func(t *testing.T) {
			request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(tc.seconds)}}
			result, err := issuer.RequestToken(t.Context(), "default", "default", request)
			if !tc.ok {
				wantInvalid(t, result, err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			claims := verify(t, issuer, result.Status.Token)
			if life := claims["exp"].(float64) - claims["iat"].(float64); life != float64(tc.seconds) {
				t.Errorf("the token lives for %v s, want %d", life, tc.seconds)
			}
		})
	}
}

func wantInvalid(t *testing.T, result *authenticationv1.TokenRequest, err error) {
	t.Helper()
	if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || result != nil {
		t.Errorf("got %v, %v, want an InvalidSpecError", result, err)
	}
}

func TestRefusedRequests(t *testing.T) {
	withRef := func(change func(*authenticationv1.BoundObjectReference)) *authenticationv1.TokenRequest {
		ref := boundTo("web", "uid")
		change(ref)
		return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref}}
	}
	fine := &authenticationv1.TokenRequest{}
	for _, tc := range []struct {
		name, namespace, account string
		request                  *authenticationv1.TokenRequest
	}{
		{"no request", "ns", "sa", nil},
		{"no namespace", "", "sa", fine},
		{"no service account", "ns", "", fine},
		{"a namespace that looks like another account's subject", "ns:admin", "sa", fine},
		{"a service account with a colon", "ns", "a:b", fine},
		{"a service account that is a path", "ns", "../sa", fine},
		{"an empty audience", "ns", "sa", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"a", ""}}}},
		{"bound to a secret", "ns", "sa", withRef(func(r *authenticationv1.BoundObjectReference) { r.Kind = "Secret" })},
		{"bound to nothing", "ns", "sa", withRef(func(r *authenticationv1.BoundObjectReference) { r.Kind = "" })},
		{"bound to another version", "ns", "sa", withRef(func(r *authenticationv1.BoundObjectReference) { r.APIVersion = "v2" })},
		{"bound to a pod without name", "ns", "sa", withRef(func(r *authenticationv1.BoundObjectReference) { r.Name = "" })},
		{"bound to a pod without UID", "ns", "sa", withRef(func(r *authenticationv1.BoundObjectReference) { r.UID = "" })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			result, err := localtoken.New(filepath.Join(dir, "key")).RequestToken(t.Context(), tc.namespace, tc.account, tc.request)
			wantInvalid(t, result, err)
			if volume.IsUncertain(err) {
				t.Errorf("%v does not say that nothing was done", err)
			}
			if left := entries(t, dir); len(left) != 0 {
				t.Errorf("a refused request left %v", left)
			}
		})
	}
}

func TestServiceAccountUID(t *testing.T) {
	uidOf := func(t *testing.T, issuer *localtoken.Issuer, namespace, name string) string {
		t.Helper()
		result, err := issuer.RequestToken(t.Context(), namespace, name, &authenticationv1.TokenRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return dig(t, verify(t, issuer, result.Status.Token), "kubernetes.io", "serviceaccount", "uid").(string)
	}
	derived := uidOf(t, newIssuer(t), "ops", "builder")
	if want := string(objects.DerivedUID("ServiceAccount", "ops", "builder")); derived != want {
		t.Errorf("a token says %q, an account from a manifest has %q", derived, want)
	}
	if again := uidOf(t, newIssuer(t), "ops", "builder"); again != derived {
		t.Errorf("another machine says %q, this one %q", again, derived)
	}
	for _, other := range [][2]string{{"ops", "other"}, {"dev", "builder"}, {"op", "sbuilder"}} {
		if uidOf(t, newIssuer(t), other[0], other[1]) == derived {
			t.Errorf("%v has the UID of ops/builder", other)
		}
	}

	failed := errors.New("the API does not answer")
	for _, tc := range []struct {
		name    string
		uid     types.UID
		err     error
		want    string
		wantErr error
	}{
		{name: "known", uid: "real", want: "real"},
		{name: "not known", err: &volume.ObjectNotFoundError{}, want: derived},
		{name: "known without UID", want: derived},
		{name: "look-up failed", err: failed, wantErr: failed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			issuer := newIssuer(t)
			issuer.ServiceAccountUID = func(_ context.Context, namespace, name string) (types.UID, error) {
				if namespace != "ops" || name != "builder" {
					t.Errorf("looked up %s/%s", namespace, name)
				}
				return tc.uid, tc.err
			}
			if tc.wantErr != nil {
				result, err := issuer.RequestToken(t.Context(), "ops", "builder", &authenticationv1.TokenRequest{})
				if !errors.Is(err, tc.wantErr) || result != nil {
					t.Errorf("got %v, %v", result, err)
				}
				return
			}
			if got := uidOf(t, issuer, "ops", "builder"); got != tc.want {
				t.Errorf("uid = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestEndedContextTouchesNothing(t *testing.T) {
	dir := t.TempDir()
	issuer := localtoken.New(filepath.Join(dir, "key"))
	cause := errors.New("the pod is gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := issuer.RequestToken(ctx, "ns", "sa", &authenticationv1.TokenRequest{}); !errors.Is(err, cause) {
		t.Errorf("err = %v", err)
	}
	if left := entries(t, dir); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// Several issuers stand for several processes.
func TestRaceToMakeTheKeyEndsWithOne(t *testing.T) {
	for range 10 {
		dir := t.TempDir()
		path := filepath.Join(dir, "key")
		issuers := []*localtoken.Issuer{localtoken.New(path), localtoken.New(path), localtoken.New(path)}
		tokens := make([]string, 12)
		var wg sync.WaitGroup
		for n := range tokens {
			wg.Go(func() {
				result, err := issuers[n%len(issuers)].RequestToken(t.Context(), "ns", "sa", &authenticationv1.TokenRequest{})
				if err != nil {
					t.Error(err)
					return
				}
				tokens[n] = result.Status.Token
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		fresh := localtoken.New(path) // what a restarted process reads
		for _, token := range tokens {
			verify(t, fresh, token)
		}
		if diff := cmp.Diff([]string{"key"}, entries(t, dir)); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
	}
}

// The public key set must not tell the private key.
func TestJWKS(t *testing.T) {
	issuer := newIssuer(t)
	data, err := issuer.JWKS(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var set struct{ Keys []map[string]string }
	if err := json.Unmarshal(data, &set); err != nil || len(set.Keys) != 1 {
		t.Fatalf("%s: %v", data, err)
	}
	got := set.Keys[0]
	for _, free := range []string{"kid", "x", "y"} {
		if got[free] == "" {
			t.Errorf("no %s in %s", free, data)
		}
		delete(got, free)
	}
	want := map[string]string{"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("key (-want +got):\n%s", diff)
	}
}
