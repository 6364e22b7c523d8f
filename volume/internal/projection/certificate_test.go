package projection_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	encodingpem "encoding/pem"
	"errors"
	"math/big"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
)

const certificateSigner = "example.com/pods"

func projectCertificate(keyType string) *v1.PodCertificateProjection {
	return &v1.PodCertificateProjection{SignerName: certificateSigner, KeyType: keyType, CredentialBundlePath: "bundle.pem"}
}

func newCertificateBench(t testing.TB, p *v1.PodCertificateProjection, more ...v1.VolumeProjection) *bench {
	return newBench(t, fromSources(append([]v1.VolumeProjection{{PodCertificate: p}}, more...)...))
}

// bundle reads a credential bundle as a server does: key and certificate must go together.
func (b *bench) bundle(file string) *x509.Certificate {
	b.Helper()
	text, err := os.ReadFile(b.dir() + "/" + file)
	if err != nil {
		b.Fatal(err)
	}
	pair, err := tls.X509KeyPair(text, text)
	if err != nil {
		b.Fatal(err)
	}
	if block, _ := encodingpem.Decode(text); block.Type != "PRIVATE KEY" || len(pair.Certificate) != 2 {
		b.Errorf("the bundle begins with %s and has %d certificates", block.Type, len(pair.Certificate))
	}
	return pair.Leaf
}

// asked counts the requests to the signer.
func (b *bench) asked(method string) (n int) {
	for _, call := range b.host.RoleCalls() {
		if call.Method == method {
			n++
		}
	}
	return n
}

func TestCertificateOfEveryKeyType(t *testing.T) {
	for keyType, algorithm := range map[string]x509.PublicKeyAlgorithm{
		"RSA3072": x509.RSA, "RSA4096": x509.RSA, "ECDSAP256": x509.ECDSA, "ECDSAP384": x509.ECDSA, "ECDSAP521": x509.ECDSA, "ED25519": x509.Ed25519,
	} {
		t.Run(keyType, func(t *testing.T) {
			p := projectCertificate(keyType)
			p.KeyPath, p.CertificateChainPath = "key.pem", "dir/chain.pem"
			b := newCertificateBench(t, p)
			b.setUp()
			if leaf := b.bundle("bundle.pem"); leaf.PublicKeyAlgorithm != algorithm {
				t.Errorf("the key is of %v", leaf.PublicKeyAlgorithm)
			}
			text := b.files()
			for file, shown := range text {
				text[file] = strings.TrimPrefix(shown, "0644 ")
			}
			if len(text) != 3 || text["key.pem"]+text["dir/chain.pem"] != text["bundle.pem"] {
				t.Errorf("%d files; key and chain are not the bundle", len(text))
			}
		})
	}
}

// Only the pod's user and group may read what is made for the pod alone.
func TestCertificateIsThePodsAlone(t *testing.T) {
	b := newCertificateBench(t, projectCertificate("ED25519"))
	if err := b.trySetUp(volume.MounterArgs{FsGroup: new(int64(os.Getgid()))}); err != nil {
		t.Fatal(err)
	}
	if mode, _, _ := strings.Cut(b.files()["bundle.pem"], " "); mode != "0640" {
		t.Errorf("mode %s", mode)
	}
}

// The signer says when it wants to be asked again; key and certificate change together.
func TestCertificateIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCertificateBench(t, projectCertificate("ED25519"))
		start := time.Now()
		m := b.mounter()
		if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
			t.Fatal(err)
		}
		first := b.bundle("bundle.pem")
		due := volume.RefreshAfter(m)
		if after := due.Sub(start); after < 12*time.Hour-time.Second || after > 12*time.Hour+5*time.Minute {
			t.Errorf("due after %v", after)
		}
		time.Sleep(time.Until(due) - time.Nanosecond)
		b.setUp()
		if n := b.asked("RequestPodCertificate"); n != 1 || !b.bundle("bundle.pem").Equal(first) {
			t.Errorf("%d requests before it is due", n)
		}
		time.Sleep(time.Nanosecond)
		b.setUp()
		second := b.bundle("bundle.pem")
		if slices.Equal(first.PublicKey.(ed25519.PublicKey), second.PublicKey.(ed25519.PublicKey)) {
			t.Error("the key was used again")
		}
		b.tearDown()
		b.setUp()
		if n := b.asked("RequestPodCertificate"); n != 3 {
			t.Errorf("%d requests; a volume that was torn down needs a certificate of its own", n)
		}
	})
}

// While the signer is slow, the volume stays as it is, and the request is not made again.
func TestASlowSignerIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCertificateBench(t, projectCertificate("ED25519"), projectConfigMap("app"))
		b.host.Add(configMap("app", map[string]string{"key": "old"}))
		answer := make(chan struct{})
		b.host.InjectRole(fakehost.RoleFault{Match: awaits, Release: answer})
		for range 3 {
			begun := time.Now()
			err := b.trySetUp(volume.MounterArgs{})
			if at, again := volume.RetryAt(err); !again || at.After(time.Now()) || volume.IsUncertain(err) || !strings.Contains(err.Error(), "PodCertificateRequest default/req-1") {
				t.Fatalf("%v", err)
			}
			if waited := time.Since(begun); waited != 30*time.Second {
				t.Errorf("waited for %v", waited)
			}
		}
		close(answer)
		b.setUp()
		first := b.bundle("bundle.pem")
		if n := b.asked("RequestPodCertificate"); n != 1 {
			t.Errorf("%d requests", n)
		}

		later := make(chan struct{})
		b.host.InjectRole(fakehost.RoleFault{Match: awaits, Release: later})
		time.Sleep(12*time.Hour + 5*time.Minute)
		b.host.Add(configMap("app", map[string]string{"key": "new"}))
		begun := time.Now()
		b.setUp()
		if waited := time.Since(begun); waited != 5*time.Second || !b.bundle("bundle.pem").Equal(first) || b.files()["key"] != "0644 new" {
			t.Errorf("after %v: %s", waited, b.files()["key"])
		}
		if events := b.host.RecordedEvents(); len(events) > 0 {
			t.Errorf("told of a renewal that is not late: %v", events)
		}
		time.Sleep(10 * time.Minute)
		b.setUp()
		if events := b.host.RecordedEvents(); len(events) != 1 || events[0].Reason != "PodCertificateRefreshFailed" || !strings.Contains(events[0].Message, "default/req-2") {
			t.Errorf("%v", events)
		}
		close(later)
		time.Sleep(time.Minute)
		b.setUp()
		if n := b.asked("RequestPodCertificate"); n != 2 || b.bundle("bundle.pem").Equal(first) {
			t.Errorf("%d requests", n)
		}
	})
}

func awaits(c fakehost.RoleCall) bool { return c.Method == "AwaitPodCertificate" }

// Who is denied is not asked for again, and keeps what is valid.
func TestADeniedPodIsDeniedForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCertificateBench(t, projectCertificate("ED25519"))
		denied := &volume.Failure{Cause: volume.ErrPodCertificateRefused, What: "denied by example.com/pods: not you"}
		deny := fakehost.RoleFault{Match: awaits, Err: denied}
		b.setUp()
		m := b.mounter()
		first := b.bundle("bundle.pem")
		time.Sleep(13 * time.Hour)
		b.host.InjectRole(deny)
		for range 3 {
			if err := m.SetUp(t.Context(), volume.MounterArgs{}); err != nil {
				t.Fatal(err)
			}
		}
		if !b.bundle("bundle.pem").Equal(first) || !volume.RefreshAfter(m).Equal(first.NotAfter) {
			t.Errorf("due at %v, expires at %v", volume.RefreshAfter(m), first.NotAfter)
		}
		if events := b.host.RecordedEvents(); len(events) != 1 || !strings.Contains(events[0].Message, "not you") {
			t.Errorf("%v", events)
		}
		time.Sleep(12 * time.Hour)
		err := b.trySetUp(volume.MounterArgs{})
		if !errors.Is(err, volume.ErrPodCertificateRefused) || !strings.Contains(err.Error(), "not you") || b.asked("RequestPodCertificate") != 2 {
			t.Errorf("%d requests, %v", b.asked("RequestPodCertificate"), err)
		}
	})
}

// A request that fails is made again with the same key; one that is gone is replaced.
func TestACertificateComesAfterFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCertificateBench(t, projectCertificate("ED25519"))
		failed := errors.New("no answer")
		b.host.InjectRole(
			fakehost.RoleFault{Match: func(c fakehost.RoleCall) bool { return c.Method == "RequestPodCertificate" }, Nth: 1, Err: failed},
			fakehost.RoleFault{Match: awaits, Nth: 1, Err: failed},
			fakehost.RoleFault{Match: awaits, Nth: 2, Err: &volume.ObjectNotFoundError{Ref: volume.NewObjectRef("PodCertificateRequest", "default", "req-1")}},
		)
		for _, want := range []string{"no answer", "no answer", "was deleted"} {
			if err := b.trySetUp(volume.MounterArgs{}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		}
		b.setUp()
		if leaf := b.bundle("bundle.pem"); leaf.SerialNumber.Int64() != 2 || b.asked("RequestPodCertificate") != 3 {
			t.Errorf("certificate %v after %d requests", leaf.SerialNumber, b.asked("RequestPodCertificate"))
		}
	})
}

// An agent that is started again goes on with what the volume shows, while it is valid.
func TestACertificateOutlivesTheAgent(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1.PodCertificateProjection)
		later  time.Duration
		again  int
	}{
		"a bundle": {func(*v1.PodCertificateProjection) {}, time.Hour, 0},
		"two files": {func(p *v1.PodCertificateProjection) {
			p.CredentialBundlePath, p.KeyPath, p.CertificateChainPath = "", "k", "c"
		}, time.Hour, 0},
		"no key":            {func(p *v1.PodCertificateProjection) { p.CredentialBundlePath, p.CertificateChainPath = "", "c" }, time.Hour, 1},
		"due by its life":   {func(*v1.PodCertificateProjection) {}, 20 * time.Hour, 1},
		"expired":           {func(*v1.PodCertificateProjection) {}, 25 * time.Hour, 1},
		"the signer's time": {func(*v1.PodCertificateProjection) {}, 13 * time.Hour, 0}, // which is not on disk
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := projectCertificate("ECDSAP256")
				tc.change(p)
				b := newCertificateBench(t, p)
				b.setUp()
				before := b.files()
				time.Sleep(tc.later)
				b.host = b.host.Restarted()
				b.plugin = pluginOf(b.spec.Volume.VolumeSource)
				if err := b.plugin.Init(b.host); err != nil {
					t.Fatal(err)
				}
				b.setUp()
				if tc.later == 20*time.Hour { // due a minute later at the soonest
					time.Sleep(time.Minute)
					b.setUp()
				}
				same := b.asked("RequestPodCertificate") == 0
				for file, text := range before {
					same = same && b.files()[file] == text
				}
				if n := b.asked("RequestPodCertificate"); n != tc.again || same != (tc.again == 0) {
					t.Errorf("%d requests, the same files %v", n, same)
				}
			})
		})
	}
}

// issuing is a signer that answers as it likes.
type issuing struct {
	volume.PodCertificateRequester
	key    ed25519.PublicKey
	answer func(key ed25519.PublicKey) volume.PodCertificate
}

func (i *issuing) RequestPodCertificate(_ context.Context, _ *v1.Pod, r volume.PodCertificateRequest) (string, error) {
	i.key = r.Key.Public().(ed25519.PublicKey)
	return "r", nil
}

func (i *issuing) AwaitPodCertificate(context.Context, string, string) (volume.PodCertificate, error) {
	return i.answer(i.key), nil
}

// What a signer says is checked.
func TestHostileSigners(t *testing.T) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(key any, from, to time.Duration) string {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to)}
		der, err := x509.CreateCertificate(nil, template, template, key, private)
		if err != nil {
			t.Fatal(err)
		}
		return string(encodingpem.EncodeToMemory(&encodingpem.Block{Type: "CERTIFICATE", Headers: map[string]string{"a": "b"}, Bytes: der}))
	}
	for name, tc := range map[string]struct {
		chain func(key ed25519.PublicKey) string
		want  string
	}{
		"nothing":     {func(ed25519.PublicKey) string { return "" }, "no certificate"},
		"text":        {func(ed25519.PublicKey) string { return "certificate" }, "no certificate"},
		"another key": {func(ed25519.PublicKey) string { return issue(public, -time.Minute, time.Hour) }, "another key"},
		"expired":     {func(key ed25519.PublicKey) string { return issue(key, -2*time.Hour, -time.Hour) }, "has expired"},
		"backwards":   {func(key ed25519.PublicKey) string { return issue(key, 2*time.Hour, time.Hour) }, "before it begins"},
		"a private key": {func(key ed25519.PublicKey) string {
			return issue(key, -time.Minute, time.Hour) + "-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"
		}, "PRIVATE KEY"},
		"garbage": {func(key ed25519.PublicKey) string {
			return issue(key, -time.Minute, time.Hour) + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
		}, "no valid certificate"},
		"headers and comments": {func(key ed25519.PublicKey) string {
			return "# one\n" + issue(key, -time.Minute, time.Hour) + "# two\n" + issue(public, -time.Minute, time.Hour)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newCertificateBench(t, projectCertificate("ED25519"))
			b.host.PodCertificates = &issuing{answer: func(key ed25519.PublicKey) volume.PodCertificate { return volume.PodCertificate{Chain: tc.chain(key)} }}
			err := b.trySetUp(volume.MounterArgs{})
			if tc.want != "" {
				if err == nil || volume.IsUncertain(err) || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%v, want %q", err, tc.want)
				}
				b.host.AssertTornDown(t)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			b.bundle("bundle.pem")
			if text := b.files()["bundle.pem"]; strings.Contains(text, "#") || strings.Contains(text, "a: b") {
				t.Errorf("shown as it came:\n%s", text[strings.Index(text, "CERT"):])
			}
		})
	}
}
