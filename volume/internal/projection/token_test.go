package projection_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/volumesource"
)

// issuer is a TokenRequester that keeps what it was asked.
type issuer struct {
	requests []authenticationv1.TokenRequest
	accounts []string
	life     time.Duration // 0: as asked
	err      error
	blank    bool
}

func (i *issuer) RequestToken(_ context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	i.requests = append(i.requests, *r.DeepCopy())
	i.accounts = append(i.accounts, namespace+"/"+account)
	if i.err != nil {
		return nil, i.err
	}
	life := i.life
	if life == 0 {
		life = time.Duration(*r.Spec.ExpirationSeconds) * time.Second
	}
	answer := r.DeepCopy()
	if !i.blank {
		answer.Status.Token = fmt.Sprintf("canary-%d", len(i.requests))
	}
	answer.Status.ExpirationTimestamp = metav1.NewTime(time.Now().Add(life))
	return answer, nil
}

func newTokenBench(t *testing.T, sources ...v1.VolumeProjection) (*bench, *issuer) {
	b := newBench(t, fromSources(sources...))
	i := &issuer{}
	b.host.Tokens = i
	return b, i
}

func TestTokenRequest(t *testing.T) {
	p := projectToken("dir/token")
	p.ServiceAccountToken.Audience = "vault"
	p.ServiceAccountToken.ExpirationSeconds = ptr.To[int64](7200)
	b, i := newTokenBench(t, p, projectToken("plain"))
	b.pod.Spec.ServiceAccountName = ""
	b.setUp()
	b.wantFiles(map[string]string{"dir/token": "0644 canary-1", "plain": "0644 canary-2"})
	if len(i.requests) != 2 || i.accounts[0] != "default/default" {
		t.Fatalf("%v %v", i.accounts, i.requests)
	}
	bound := &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: "web", UID: b.pod.UID}
	for n, want := range []authenticationv1.TokenRequestSpec{
		{Audiences: []string{"vault"}, ExpirationSeconds: ptr.To[int64](7200), BoundObjectRef: bound},
		{ExpirationSeconds: ptr.To[int64](3600), BoundObjectRef: bound},
	} {
		if got := i.requests[n].Spec; got.String() != want.String() {
			t.Errorf("asked for %v, want %v", got, want)
		}
	}
}

func TestTokenIsRenewedWhenDue(t *testing.T) {
	tests := map[string]struct {
		asked int64
		life  time.Duration
		want  time.Duration
	}{
		"80 % of an hour":               {3600, 0, 48 * time.Minute},
		"24 hours of a week":            {7 * 24 * 3600, 0, 24 * time.Hour},
		"the issuer gives less":         {3600, 10 * time.Minute, 8 * time.Minute},
		"the issuer gives more":         {600, time.Hour, 48 * time.Minute},
		"expired by the node's clock":   {600, -time.Hour, time.Minute},
		"shorter than a minute is kept": {600, 10 * time.Second, time.Minute},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := projectToken("token")
				p.ServiceAccountToken.ExpirationSeconds = &tc.asked
				b, i := newTokenBench(t, p)
				i.life = tc.life
				start := time.Now()
				m := b.mounter()
				if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
					t.Fatal(err)
				}
				if got := volume.RefreshAfter(m).Sub(start); got != tc.want {
					t.Fatalf("due after %v, want %v", got, tc.want)
				}

				time.Sleep(tc.want - time.Nanosecond)
				state := b.state()
				b.setUp()
				if after := b.state(); strings.Join(state, "") != strings.Join(after, "") || len(i.requests) != 1 {
					t.Errorf("a fresh token was asked for %d times, or written", len(i.requests))
				}

				time.Sleep(time.Nanosecond)
				if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
					t.Fatal(err)
				}
				b.wantFiles(map[string]string{"token": "0644 canary-2"})
				if got := volume.RefreshAfter(m).Sub(start); got != 2*tc.want {
					t.Errorf("due again after %v, want %v", got, 2*tc.want)
				}
			})
		})
	}
}

func TestEarliestTokenIsDueFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		long, short := projectToken("long"), projectToken("short")
		long.ServiceAccountToken.ExpirationSeconds = ptr.To[int64](36000)
		short.ServiceAccountToken.ExpirationSeconds = ptr.To[int64](600)
		b, i := newTokenBench(t, long, short, projectToken("other"))
		m := b.mounter()
		start := time.Now()
		if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
			t.Fatal(err)
		}
		if got := volume.RefreshAfter(m).Sub(start); got != 8*time.Minute {
			t.Errorf("due after %v", got)
		}
		time.Sleep(8 * time.Minute)
		b.setUp()
		if len(i.requests) != 4 || *i.requests[3].Spec.ExpirationSeconds != 600 {
			t.Errorf("%d requests; only the one that is due should be renewed", len(i.requests))
		}
	})
}

func TestAValidTokenIsKeptWhenRenewalFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, i := newTokenBench(t, projectToken("token"))
		b.setUp()
		boom := errors.New("boom")
		i.err = boom
		time.Sleep(50 * time.Minute)
		m := b.mounter()
		if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
			t.Fatal(err)
		}
		b.wantFiles(map[string]string{"token": "0644 canary-1"})
		if got := time.Until(volume.RefreshAfter(m)); got != time.Minute {
			t.Errorf("tried again after %v", got)
		}
		events := b.host.RecordedEvents()
		if len(events) != 1 || events[0].Reason != "TokenRefreshFailed" || events[0].Type != v1.EventTypeWarning ||
			!strings.Contains(events[0].Message, "boom") || !strings.Contains(events[0].Message, "default/default") {
			t.Errorf("events %+v", events)
		}
		b.setUp()
		if len(i.requests) != 2 {
			t.Errorf("%d requests within the minute", len(i.requests))
		}

		time.Sleep(10 * time.Minute) // it has expired
		err := b.trySetUp(volume.MounterArgs{})
		if !errors.Is(err, boom) || !strings.Contains(err.Error(), `service account "default/default"`) {
			t.Errorf("%v", err)
		}
		b.wantFiles(map[string]string{"token": "0644 canary-1"})

		i.err = nil
		b.setUp()
		b.wantFiles(map[string]string{"token": fmt.Sprintf("0644 canary-%d", len(i.requests))})
	})
}

// keeper is an issuer that has a cache of its own, and answers with what is old when
// it cannot renew it.
type keeper struct {
	issuer
	stuck     bool
	last      *authenticationv1.TokenRequest
	forgotten []types.UID
}

func (k *keeper) RequestToken(ctx context.Context, namespace, account string, r *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	if k.stuck {
		k.requests = append(k.requests, *r)
		return k.last, nil
	}
	answer, err := k.issuer.RequestToken(ctx, namespace, account, r)
	k.last = answer
	return answer, err
}

func (k *keeper) ForgetTokens(podUID types.UID) { k.forgotten = append(k.forgotten, podUID) }

func TestATokenThatComesBackIsAskedForAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, fromSources(projectToken("token")))
		k := &keeper{}
		b.host.Tokens = k
		b.setUp()
		k.stuck = true
		time.Sleep(48 * time.Minute)
		for range 5 {
			m := b.mounter()
			if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
				t.Fatal(err)
			}
			if got := time.Until(volume.RefreshAfter(m)); got != time.Minute {
				t.Fatalf("asked again after %s", got)
			}
			time.Sleep(time.Minute)
		}
		b.wantFiles(map[string]string{"token": "0644 canary-1"})
		k.stuck = false
		b.setUp()
		b.wantFiles(map[string]string{"token": "0644 canary-7"})
		b.tearDown()
		if len(k.forgotten) == 0 || k.forgotten[0] != b.pod.UID {
			t.Errorf("the requester was told to forget %q", k.forgotten)
		}
	})
}

func TestTokensAreDroppedAtTearDown(t *testing.T) {
	b, i := newTokenBench(t, projectToken("token"))
	b.setUp()
	other := newBenchOn(b, b.spec.Volume.VolumeSource)
	other.plugin = b.plugin
	other.setUp()
	b.tearDown()
	b.setUp()
	other.setUp()
	if len(i.requests) != 3 {
		t.Errorf("%d requests: a pod that is set up again needs a new token, the other pod does not", len(i.requests))
	}
}

func TestVolumesOfAPodShareAToken(t *testing.T) {
	b, i := newTokenBench(t, projectToken("token"), projectToken("same"))
	b.setUp()
	if len(i.requests) != 1 {
		t.Errorf("%d requests", len(i.requests))
	}
}

func TestNoTokenInTheAnswer(t *testing.T) {
	b, i := newTokenBench(t, projectToken("token"))
	i.blank = true
	if err := b.trySetUp(volume.MounterArgs{}); err == nil || volume.IsUncertain(err) {
		t.Errorf("%v", err)
	}
	b.host.AssertTornDown(t)
}

// Nothing that can be printed shows a token or the contents of a secret.
func TestSecretsAreNotShown(t *testing.T) {
	b, i := newTokenBench(t, projectToken("token"), projectSecret("tls"))
	b.host.Add(secretObject("tls", map[string]string{"key": "canary"}))
	m := b.mounter()
	if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
		t.Fatal(err)
	}
	shown := []string{
		fmt.Sprintf("%v %+v %#v", b.plugin, b.plugin, b.plugin), fmt.Sprintf("%v %+v %#v", m, m, m),
		volumesource.Describe(b.plugin, b.spec), fmt.Sprint(b.host.Fake.Calls(), b.host.RecordedEvents()),
	}
	failures := map[string]func(){
		"the secret's key is not a file's name": func() {
			b.host.Add(secretObject("tls", map[string]string{"..": "canary"}))
		},
		"a key is in the way of the token": func() {
			b.host.Add(secretObject("tls", map[string]string{"token": "canary"}))
			usual := b.pod
			b.Cleanup(func() { b.use(usual) })
			b.use(fakehost.Pod("web", v1.Volume{Name: "vol", VolumeSource: fromSources(projectToken("token/x"), projectSecret("tls"))}))
		},
		"the issuer refuses": func() { i.err = errors.New("no") },
	}
	for name, fail := range failures {
		fail()
		b.tearDown()
		err := b.trySetUp(volume.MounterArgs{})
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		shown = append(shown, fmt.Sprintf("%v %+v %#v", err, err, err))
	}
	b.tearDown()
	b.host.Add(secretObject("tls", map[string]string{"key": "canary"}))
	i.err = nil
	shown = append(shown, fmt.Sprint(b.trySetUp(volume.MounterArgs{FsUser: ptr.To[int64](-5)})))
	for _, text := range shown {
		if strings.Contains(text, "canary") {
			t.Errorf("a secret is shown: %s", text)
		}
	}
}
