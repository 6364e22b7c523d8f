package fakehost_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
)

func role[R any](t *testing.T, h *fakehost.Host) R {
	t.Helper()
	r, err := volume.Role[R](h)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func TestObjects(t *testing.T) {
	h := fakehost.New(t)
	secret := &v1.Secret{ObjectMeta: meta("ns", "s"), Data: map[string][]byte{"k": []byte("v")}}
	h.Add(secret, &v1.ConfigMap{ObjectMeta: meta("ns", "c"), Data: map[string]string{"k": "v"}})
	secret.Data["k"] = []byte("changed")
	got, err := role[volume.SecretGetter](t, h).GetSecret(t.Context(), "ns", "s")
	if err != nil || string(got.Data["k"]) != "v" {
		t.Errorf("GetSecret = %v, %v", got, err)
	}
	configMaps := role[volume.ConfigMapGetter](t, h)
	if got, err := configMaps.GetConfigMap(t.Context(), "ns", "c"); err != nil || got.Data["k"] != "v" {
		t.Errorf("GetConfigMap = %v, %v", got, err)
	}
	h.Delete(volume.NewObjectRef("ConfigMap", "ns", "c"))
	_, err = configMaps.GetConfigMap(t.Context(), "ns", "c")
	missing, ok := errors.AsType[*volume.ObjectNotFoundError](err)
	if !ok || !errors.Is(err, volume.ErrNotFound) || missing.Ref != volume.NewObjectRef("ConfigMap", "ns", "c") {
		t.Errorf("a missing config map: %v", err)
	}
	want := []fakehost.RoleCall{{"GetSecret", "ns", "s"}, {"GetConfigMap", "ns", "c"}, {"GetConfigMap", "ns", "c"}}
	if diff := cmp.Diff(want, h.RoleCalls()); diff != "" {
		t.Error(diff)
	}
}

func TestTrustBundles(t *testing.T) {
	h := fakehost.New(t)
	for _, b := range []struct{ name, signer, label, pem string }{
		{"b", "example.com/s", "x", "B\n"}, {"a", "example.com/s", "x", "A\n"},
		{"again", "example.com/s", "x", "A\n"}, {"y", "example.com/s", "y", "Y\n"}, {"other", "example.com/o", "x", "O\n"},
	} {
		meta := metav1.ObjectMeta{Name: b.name, Labels: map[string]string{"l": b.label}}
		h.Add(kubeapi.MakeTrustBundle(kubeapi.TrustBundle{ObjectMeta: meta, SignerName: b.signer, PEM: b.pem}))
	}
	bundles := role[volume.TrustBundleGetter](t, h)
	if pem, err := bundles.GetTrustBundle(t.Context(), "other"); pem != "O\n" || err != nil {
		t.Errorf("GetTrustBundle = %q, %v", pem, err)
	}
	if _, err := bundles.GetTrustBundle(t.Context(), "none"); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("a missing bundle: %v", err)
	}
	for name, tc := range map[string]struct {
		selector *metav1.LabelSelector
		want     string
	}{
		"nil":   {nil, ""},
		"empty": {&metav1.LabelSelector{}, "A\nB\nY\n"},
		"label": {&metav1.LabelSelector{MatchLabels: map[string]string{"l": "x"}}, "A\nB\n"},
	} {
		if pem, err := bundles.GetTrustBundlesBySigner(t.Context(), "example.com/s", tc.selector); pem != tc.want || err != nil {
			t.Errorf("%s selector: %q, %v; want %q", name, pem, err, tc.want)
		}
	}
}

func TestTokens(t *testing.T) {
	h := fakehost.New(t)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	h.Now = func() time.Time { return now }
	tokens := role[volume.TokenRequester](t, h)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}}}
	seen := map[string]bool{}
	for _, tc := range []struct {
		seconds *int64
		want    time.Duration
	}{{nil, time.Hour}, {new(int64(600)), 10 * time.Minute}, {new(int64(600)), 10 * time.Minute}} {
		request.Spec.ExpirationSeconds = tc.seconds
		issued, err := tokens.RequestToken(t.Context(), "ns", "sa", request)
		if err != nil {
			t.Fatal(err)
		}
		if got := issued.Status.ExpirationTimestamp.Sub(now); got != tc.want {
			t.Errorf("the token lives for %v, want %v", got, tc.want)
		}
		if seen[issued.Status.Token] || strings.Count(issued.Status.Token, ".") != 2 {
			t.Errorf("token %q", issued.Status.Token)
		}
		seen[issued.Status.Token] = true
	}
	if request.Status.Token != "" {
		t.Error("the request was changed")
	}
}

func TestRoleFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := fakehost.New(t)
		failed := errors.New("no answer")
		remove := h.InjectRole(
			fakehost.RoleFault{Match: func(c fakehost.RoleCall) bool { return c.Method == "GetAllocatable" }, Err: failed},
			fakehost.RoleFault{Match: func(c fakehost.RoleCall) bool { return c.Name == "slow" }, Release: make(chan struct{})},
		)
		allocatable := role[volume.AllocatableGetter](t, h)
		if _, err := allocatable.GetAllocatable(t.Context()); !errors.Is(err, failed) {
			t.Errorf("err = %v", err)
		}
		h.Add(&v1.Secret{ObjectMeta: meta("ns", "slow")})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if s, err := role[volume.SecretGetter](t, h).GetSecret(ctx, "ns", "slow"); !errors.Is(err, context.DeadlineExceeded) || s != nil {
			t.Errorf("a hung role: %v, %v", s, err)
		}
		remove()
		if got, err := allocatable.GetAllocatable(t.Context()); err != nil || !got.Memory().Equal(*h.NodeAllocatable.Memory()) {
			t.Errorf("GetAllocatable = %v, %v", got, err)
		}
		h.ResetRoleCalls()
		if got := h.RoleCalls(); len(got) != 0 {
			t.Errorf("calls after the reset: %v", got)
		}
	})
}

func TestARoleCanBeTakenAway(t *testing.T) {
	h := fakehost.New(t)
	h.Secrets = nil
	_, err := volume.Role[volume.SecretGetter](h)
	if _, ok := errors.AsType[*volume.MissingRoleError](err); !ok {
		t.Errorf("err = %v", err)
	}
	role[volume.ConfigMapGetter](t, h)
}

func TestEventsConcurrently(t *testing.T) {
	h := fakehost.New(t)
	events := role[volume.EventSink](t, h)
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() { events.Event(fakehost.Pod("p"), v1.EventTypeWarning, "FailedMount", "why") })
	}
	group.Wait()
	got := h.RecordedEvents()
	if len(got) != 10 || got[0].PodUID != fakehost.Pod("p").UID || got[0].Reason != "FailedMount" || got[0].Message != "why" {
		t.Errorf("events %v", got)
	}
}

func TestRestarted(t *testing.T) {
	h := fakehost.New(t)
	h.Add(&v1.ConfigMap{ObjectMeta: meta("ns", "c")})
	h.Secrets = nil
	if err := h.GetMounter().Mount("tmpfs", filepath.Join(h.RootDir, "pods"), "tmpfs", nil); err != nil {
		t.Fatal(err)
	}
	role[volume.EventSink](t, h).Event(fakehost.Pod("p"), v1.EventTypeWarning, "FailedMount", "why")
	failed := errors.New("no answer")
	h.InjectRole(fakehost.RoleFault{Err: failed})
	own := fakehost.RoleCall{Method: "Own", Name: "x"}
	if err := h.DoRole(t.Context(), own, func() error { return nil }); !errors.Is(err, failed) {
		t.Errorf("a role of the test's own under a fault: %v", err)
	}
	if diff := cmp.Diff([]fakehost.RoleCall{own}, h.RoleCalls()); diff != "" {
		t.Error(diff)
	}
	again := h.Restarted()
	if len(again.RecordedEvents()) > 0 || len(again.RoleCalls()) > 0 {
		t.Errorf("a new process remembers events %v, calls %v", again.RecordedEvents(), again.RoleCalls())
	}
	if _, err := role[volume.ConfigMapGetter](t, again).GetConfigMap(t.Context(), "ns", "c"); err != nil {
		t.Errorf("an object after the restart: %v", err)
	}
	role[volume.SecretGetter](t, again)
	if diff := cmp.Diff(h.Mounts(t), again.Mounts(t)); diff != "" || len(again.Mounts(t)) != 1 || again.Fake != h.Fake {
		t.Errorf("mounts before and after the restart:\n%s", diff)
	}
}

func TestDirectoriesThatMayStay(t *testing.T) {
	h := fakehost.New(t)
	kept := filepath.Join(h.RootDir, "plugins", "x")
	if err := os.MkdirAll(kept, 0o755); err != nil {
		t.Fatal(err)
	}
	isKept := func(dir string) bool { return strings.HasPrefix(dir, kept) }
	h.AssertTornDown(t, isKept)
	if err := os.WriteFile(filepath.Join(kept, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := &recorder{TB: t}
	if h.AssertTornDown(r, isKept); len(r.errors) != 1 {
		t.Errorf("of a file in a directory that may stay: %q", r.errors)
	}
}

// recorder is a test that may fail.
type recorder struct {
	testing.TB
	errors   []string
	cleanups []func()
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, a ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, a...))
}
func (r *recorder) Fatalf(format string, a ...any) { r.Errorf(format, a...); panic(r) }

func TestAReaderThatChangesAnObjectFails(t *testing.T) {
	for name, change := range map[string]bool{"unchanged": false, "changed": true} {
		r := &recorder{TB: t}
		h := fakehost.New(r)
		h.Add(&v1.ConfigMap{ObjectMeta: meta("ns", "c"), Data: map[string]string{"k": "v"}})
		got, err := role[volume.ConfigMapGetter](t, h).GetConfigMap(t.Context(), "ns", "c")
		if err != nil {
			t.Fatal(err)
		}
		if change {
			got.Data["k"] = "mine"
		}
		for _, f := range r.cleanups {
			f()
		}
		if len(r.errors) > 0 != change {
			t.Errorf("%s: %q", name, r.errors)
		}
	}
}

func TestAssertClean(t *testing.T) {
	tests := map[string]struct {
		dirs, mounts         []string
		unclean, notTornDown bool
	}{
		"new":                  {},
		"a volume's directory": {dirs: []string{"pods/u/volumes/x~y/v"}, unclean: true, notTornDown: true},
		"shared directories":   {dirs: []string{"pods/u/volumes/x~y", "pods/u/plugins/x~y"}, unclean: true},
		"a plugin's directory": {dirs: []string{"plugins/x/y"}, unclean: true, notTornDown: true},
		"a cache at the root":  {dirs: []string{"cache"}, unclean: true, notTornDown: true},
		"a mount":              {dirs: []string{"elsewhere"}, mounts: []string{"elsewhere"}, unclean: true, notTornDown: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := fakehost.New(t)
			for _, dir := range tc.dirs {
				if err := os.MkdirAll(filepath.Join(h.RootDir, dir), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, dir := range tc.mounts {
				if err := h.GetMounter().Mount("tmpfs", filepath.Join(h.RootDir, dir), "tmpfs", nil); err != nil {
					t.Fatal(err)
				}
			}
			strict, lenient := &recorder{TB: t}, &recorder{TB: t}
			h.AssertClean(strict)
			h.AssertTornDown(lenient)
			if len(strict.errors) > 0 != tc.unclean || len(lenient.errors) > 0 != tc.notTornDown {
				t.Errorf("AssertClean says %q, AssertTornDown says %q", strict.errors, lenient.errors)
			}
		})
	}
}
