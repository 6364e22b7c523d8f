package clusterhost_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/volumemanager"
)

// account stores the service account that tests use.
func (w *world) account() {
	w.add(&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "app"}})
}

func tokenFor(pod *v1.Pod, seconds int64, audiences ...string) *authenticationv1.TokenRequest {
	return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences, ExpirationSeconds: &seconds,
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}}}
}

const issues = "post ServiceAccount"

func TestATokenIsKeptUntilItIsDue(t *testing.T) {
	for name, tc := range map[string]struct {
		seconds int64
		due     time.Duration
		skew    time.Duration
	}{
		"80 % of an hour":       {3600, 48 * time.Minute, 0},
		"the shortest":          {600, 8 * time.Minute, 0},
		"24 hours of a week":    {7 * 24 * 3600, 24 * time.Hour, 0},
		"the server is behind":  {3600, 48 * time.Minute, -2 * time.Hour},
		"the server is ahead":   {3600, 48 * time.Minute, 2 * time.Hour},
		"the server is in 1970": {3600, 48 * time.Minute, -55 * 365 * 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.account()
				w.api.SetClockSkew(tc.skew)
				tokens, pod := clusterhost.NewTokens(w.clientset, clusterhost.TokensConfig{}), w.projected("web")
				began := time.Now()
				first := mustToken(t, tokens, tokenFor(pod, tc.seconds))
				if got := first.Status.ExpirationTimestamp.Sub(began); got != time.Duration(tc.seconds)*time.Second {
					t.Errorf("it says that it expires after %s", got)
				}
				first.Status.Token = "changed by a caller"
				time.Sleep(tc.due - 10*time.Second - time.Millisecond)
				if got := mustToken(t, tokens, tokenFor(pod, tc.seconds)).Status.Token; got != "token-1" {
					t.Errorf("before it is due: %s", got)
				}
				time.Sleep(10 * time.Second)
				if got := mustToken(t, tokens, tokenFor(pod, tc.seconds)).Status.Token; got != "token-2" {
					t.Errorf("when it is due: %s", got)
				}
				if n := w.asked(issues); n != 2 {
					t.Errorf("%d requests", n)
				}
			})
		})
	}
}

func mustToken(t *testing.T, tokens *clusterhost.Tokens, request *authenticationv1.TokenRequest) *authenticationv1.TokenRequest {
	t.Helper()
	answer, err := tokens.RequestToken(t.Context(), "ops", "app", request)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// What differs in anything is another token.
func TestTokensAreKeptByAllOfTheRequest(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.account()
		w.add(&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "other"}})
		tokens, web, db := clusterhost.NewTokens(w.clientset, clusterhost.TokensConfig{}), w.projected("web"), w.projected("db")
		requests := []*authenticationv1.TokenRequest{tokenFor(web, 3600), tokenFor(db, 3600), tokenFor(web, 7200), tokenFor(web, 3600, "a"),
			tokenFor(web, 3600, "a", "b"), tokenFor(web, 3600, `a" "b`), {Spec: authenticationv1.TokenRequestSpec{}}}
		for range 2 {
			for _, r := range requests {
				mustToken(t, tokens, r)
			}
			if _, err := tokens.RequestToken(t.Context(), "ops", "other", requests[0]); err != nil {
				t.Error(err)
			}
		}
		if n := w.asked(issues); n != len(requests)+1 {
			t.Errorf("%d requests for %d tokens", n, len(requests)+1)
		}
		tokens.ForgetTokens(web.UID)
		for _, r := range requests {
			mustToken(t, tokens, r)
		}
		if n := w.asked(issues); n != 5 {
			t.Errorf("%d requests after one pod was forgotten, which had 5", n)
		}
	})
}

func TestCallersShareARequestButNotTheirContexts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.account()
		tokens, pod := clusterhost.NewTokens(w.clientset, clusterhost.TokensConfig{}), w.projected("web")
		release := make(chan struct{})
		remove := w.transport.Inject(apiFault{Match: on("post", "ServiceAccount"), Release: release})
		got := make(chan string, 100)
		first, cancel := context.WithCancel(t.Context())
		for i := range 100 {
			ctx := t.Context()
			if i == 0 {
				ctx = first
			}
			go func() {
				answer, err := tokens.RequestToken(ctx, "ops", "app", tokenFor(pod, 3600))
				if err != nil {
					got <- err.Error()
					return
				}
				got <- answer.Status.Token
			}()
			synctest.Wait()
		}
		cancel() // the one who has begun it
		synctest.Wait()
		close(release)
		counts := map[string]int{}
		for range 100 {
			counts[<-got]++
		}
		if n := w.asked(issues); n != 1 || counts["token-1"] != 99 || counts[context.Canceled.Error()] != 1 {
			t.Errorf("%d requests; %v", n, counts)
		}
		remove()

		// One that all have left is given up, and the next is another.
		hang := w.transport.Inject(apiFault{Match: on("post", "ServiceAccount"), Nth: 1, Release: make(chan struct{})})
		defer hang()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := tokens.RequestToken(short, "ops", "app", tokenFor(pod, 7200)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		if got := mustToken(t, tokens, tokenFor(pod, 7200)).Status.Token; got != "token-2" {
			t.Error(got)
		}
	})
}

func TestAnOldTokenIsServedWhileItIsValid(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.account()
		told, log := &events{}, &bytes.Buffer{}
		tokens, pod := clusterhost.NewTokens(w.clientset, clusterhost.TokensConfig{Events: told, Logger: slog.New(slog.NewTextHandler(log, nil))}), w.projected("web")
		mustToken(t, tokens, tokenFor(pod, 3600))
		began := time.Now()
		w.transport.SetDown(clustertest.ErrUnreachable)
		time.Sleep(48 * time.Minute)
		for time.Since(began) < time.Hour {
			if got := mustToken(t, tokens, tokenFor(pod, 3600)).Status.Token; got != "token-1" {
				t.Fatal(got)
			}
			time.Sleep(time.Second)
		}
		all := told.taken()
		if n := len(all); n < 12 || n > 21 {
			t.Errorf("%d failures in 12 minutes, with pauses of up to 40 s", n)
		}
		for _, e := range all {
			if e.pod != pod.UID || e.reason != "TokenRefreshFailed" || !strings.Contains(e.message, `"ops/app"`) || !strings.Contains(e.message, "no route to host") {
				t.Errorf("event %+v", e)
			}
		}
		if _, err := tokens.RequestToken(t.Context(), "ops", "app", tokenFor(pod, 3600)); !errors.Is(err, clustertest.ErrUnreachable) {
			t.Errorf("it has expired, and the answer is %v", err)
		}
		w.transport.SetDown(nil)
		if got := mustToken(t, tokens, tokenFor(pod, 3600)).Status.Token; got != "token-2" {
			t.Error(got)
		}
		if text := log.String(); !strings.Contains(text, "app") || strings.Contains(text, "token-") {
			t.Errorf("logged: %s", text)
		}
	})
}

// A server that does not answer at all costs a caller half a minute, or as long as
// he would wait, and he has the old token still.
func TestAHangingRenewalIsLeft(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.account()
		tokens, pod := clusterhost.NewTokens(w.clientset, clusterhost.TokensConfig{}), w.projected("web")
		mustToken(t, tokens, tokenFor(pod, 3600))
		time.Sleep(50 * time.Minute)
		defer w.transport.Inject(apiFault{Match: on("post", "ServiceAccount"), Release: make(chan struct{})})()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		answer, err := tokens.RequestToken(ctx, "ops", "app", tokenFor(pod, 3600))
		if err != nil || answer.Status.Token != "token-1" || time.Since(began) != time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		began = time.Now()
		if got := mustToken(t, tokens, tokenFor(pod, 3600)); got.Status.Token != "token-1" || time.Since(began) != 30*time.Second {
			t.Errorf("after %s", time.Since(began))
		}
		tokens.ForgetTokens(pod.UID)
		if _, err := tokens.RequestToken(t.Context(), "ops", "app", tokenFor(pod, 3600)); err == nil || !strings.Contains(err.Error(), "within 30s") {
			t.Error(err)
		}
	})
}

func TestRefusedTokensSayWhatToDo(t *testing.T) {
	status := func(code int32, reason metav1.StatusReason, kind string) func(*http.Request) *metav1.Status {
		return func(*http.Request) *metav1.Status {
			return &metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: "the API says no", Details: &metav1.StatusDetails{Name: "app", Kind: kind}}
		}
	}
	for name, tc := range map[string]struct {
		prepare func(w *world, request *authenticationv1.TokenRequest)
		missing bool
		advice  string
	}{
		"no account": {func(w *world, _ *authenticationv1.TokenRequest) {
			w.api.Direct(w.t, http.MethodDelete, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "app"}})
		}, true, "create the account"},
		"the pod is gone": {func(_ *world, r *authenticationv1.TokenRequest) { r.Spec.BoundObjectRef.Name = "gone" }, false, "gone from the API"},
		"another pod":     {func(_ *world, r *authenticationv1.TokenRequest) { r.Spec.BoundObjectRef.UID = "old" }, false, "another UID"},
		"a proxy":         {func(w *world, _ *authenticationv1.TokenRequest) { w.transport.SetHandler(http.NotFoundHandler()) }, false, "check the address"},
		"forbidden": {func(w *world, _ *authenticationv1.TokenRequest) {
			w.api.Refuse(status(http.StatusForbidden, metav1.StatusReasonForbidden, "serviceaccounts"))
		}, false, "serviceaccounts/token"},
		"unknown identity": {func(w *world, _ *authenticationv1.TokenRequest) {
			w.api.Refuse(status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, ""))
		}, false, "credentials"},
		"down": {func(w *world, _ *authenticationv1.TokenRequest) { w.transport.SetDown(clustertest.ErrUnreachable) }, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.account()
				tokens := clusterhost.NewTokens(w.clientset, clusterhost.TokensConfig{})
				request := tokenFor(w.projected("web"), 3600)
				tc.prepare(w, request)
				answer, err := tokens.RequestToken(t.Context(), "ops", "app", request)
				refusal, ok := errors.AsType[*volume.Failure](err)
				if !ok || !errors.Is(err, clusterhost.ErrNoToken) || answer != nil || errors.Is(err, volume.ErrNotFound) != tc.missing || !strings.Contains(refusal.Advice(), tc.advice) || (refusal.Advice() == "") != (tc.advice == "") {
					t.Errorf("%v", err)
				}
				if !strings.Contains(err.Error(), `"ops/app"`) || !strings.Contains(err.Error(), refusal.Advice()) {
					t.Errorf("it does not say it: %v", err)
				}
			})
		})
	}
}

func TestTokensAreNotShown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.account()
		tokens, pod := clusterhost.NewTokens(w.clientset, clusterhost.TokensConfig{}), w.projected("web")
		mustToken(t, tokens, tokenFor(pod, 3600))
		if text := fmt.Sprintf("%v %+v %#v", tokens, tokens, tokens); strings.Contains(text, "token-1") {
			t.Errorf("shown: %s", text)
		}
	})
}

func projectToken(seconds int64) v1.VolumeProjection {
	return v1.VolumeProjection{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &seconds}}
}

// An hour's token is renewed in its volume before it expires, with nobody looking at
// it, also where the API is away for 20 minutes: whenever that ends while the token is
// still valid, and soon after it where it does not.
func TestAMountedTokenIsRenewedInTime(t *testing.T) {
	const outage = 20 * time.Minute
	for _, from := range []int{0, 5, 20, 27, 30, 35, 37, 38, 40, 45, 47, 50, 55, 59} {
		t.Run(fmt.Sprintf("outage at minute %d", from), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.account()
				w.add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
				told := &events{}
				manager, _ := w.run(volumemanager.Config{Tokens: clusterhost.NewTokens(w.clientset, clusterhost.TokensConfig{Events: told}), Events: told})
				pod := w.projected("web", projectToken(3600))
				if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
					t.Fatal(err)
				}
				issued := map[string]time.Time{w.file(pod, "token"): time.Now()}
				began := time.Now()
				var longest time.Duration // that the token on disk had expired
				for time.Since(began) < 3*time.Hour {
					minute := time.Since(began)
					switch minute {
					case time.Duration(from) * time.Minute:
						w.transport.SetDown(clustertest.ErrUnreachable)
						w.api.DropWatches()
					case time.Duration(from)*time.Minute + outage:
						w.transport.SetDown(nil)
					}
					time.Sleep(time.Second)
					synctest.Wait()
					onDisk := w.file(pod, "token")
					if _, known := issued[onDisk]; !known {
						issued[onDisk] = time.Now()
					}
					longest = max(longest, time.Since(issued[onDisk])-time.Hour)
				}
				allowed := time.Duration(0)
				if end := time.Duration(from)*time.Minute + outage; end > 58*time.Minute && from < 48 {
					allowed = end - time.Hour + 2*time.Minute // nobody can have renewed it before
				}
				if longest > allowed {
					t.Errorf("the token on disk was expired for %s; %s were to be expected", longest, allowed)
				}
				if len(issued) < 4 || len(issued) > 5 {
					t.Errorf("%d tokens in 3 hours", len(issued))
				}
				if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
