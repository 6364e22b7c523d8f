package volumemanager_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/volumemanager"
)

// lateServer is an API server that refuses, or does not know the pod, until some time.
type lateServer struct {
	objects.Source
	refusal error

	mu    sync.Mutex
	until time.Time
	asked int
}

func (s *lateServer) refuses() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if time.Now().Before(s.until) {
		return s.refusal
	}
	return nil
}

func (s *lateServer) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

func (s *lateServer) refuseFor(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = time.Now().Add(d)
}

func (s *lateServer) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	if err := s.refuses(); err != nil {
		return nil, err
	}
	return s.Source.Get(ctx, ref)
}

func (s *lateServer) RequestToken(context.Context, string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	if err := s.refuses(); err != nil {
		return nil, err
	}
	return &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{Token: "a.b.c", ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour))}}, nil
}

func forbidden() error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "settings", nil)
}

// startBefore runs a manager with this API server. Tokens come from it too.
func (w *world) startBefore(s *lateServer) *volumemanager.Manager {
	w.t.Helper()
	s.Source = w.store
	config := w.config()
	config.Objects, config.Tokens = s, s
	manager, err := volumemanager.New(config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.run(manager)
	return manager
}

func tokenVolume() v1.Volume {
	token := &v1.ServiceAccountTokenProjection{Path: "token"}
	return v1.Volume{Name: "t", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{ServiceAccountToken: token}}}}}
}

// A node is faster than the API server's caches. It does not complain of that.
func TestTooEarlyForTheAPIServerIsNoFailure(t *testing.T) {
	for name, test := range map[string]struct {
		refusal error
		volume  v1.Volume
	}{
		"a config map is forbidden":    {forbidden(), configMapVolume("c", "settings")},
		"a token is forbidden":         {forbidden(), tokenVolume()},
		"the token's pod is not there": {apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "web"), tokenVolume()},
		"its account is not there":     {apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccounts"}, "default"), tokenVolume()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.add(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings"}, Data: map[string]string{"a": "1"}})
				s := &lateServer{refusal: test.refusal}
				manager := w.startBefore(s)
				s.refuseFor(2 * time.Second)
				defer manager.Subscribe(func(v volumemanager.VolumeStatus) {
					if v.Failures > 0 || v.State == volumemanager.StateFailed {
						t.Errorf("a failure is shown: %+v", v)
					}
				})()
				start := time.Now()
				pod := newPod("web", test.volume)
				pod.Spec.ServiceAccountName = "default"
				if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(start); took < 2*time.Second || took > 3*time.Second {
					t.Errorf("took %v", took)
				}
				if got := w.events.all(); len(got) > 0 {
					t.Errorf("events: %v", got)
				}
				mustTearDown(t, manager, pod)
				w.assertClean()
			})
		})
	}
}

// What is refused for longer is told, after some seconds and a few attempts.
func TestWhatStaysForbiddenIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := &lateServer{refusal: forbidden()}
		manager := w.startBefore(s)
		s.refuseFor(time.Hour)
		start := time.Now()
		if _, err := manager.SetUpPod(t.Context(), newPod("web", configMapVolume("c", "settings"))); !apierrors.IsForbidden(err) {
			t.Errorf("err = %v", err)
		}
		if took := time.Since(start); took < 5*time.Second || took > 6*time.Second || s.requests() > 10 {
			t.Errorf("told after %v and %d requests", took, s.requests())
		}
		if got := w.events.all(); len(got) != 1 || !strings.Contains(got[0], "FailedMount") {
			t.Errorf("events: %v", got)
		}
		asked := s.requests()
		time.Sleep(500 * time.Millisecond) // the next attempt is told at once
		synctest.Wait()
		if got := w.events.all(); len(got) != 2 || s.requests() != asked+1 {
			t.Errorf("%d more requests, events: %v", s.requests()-asked, got)
		}
	})
}

// A pod that goes while its volume is too early does not wait for the API server.
func TestDeletionEndsTheWaitForTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := &lateServer{refusal: forbidden()}
		manager := w.startBefore(s)
		s.refuseFor(time.Hour)
		pod := newPod("web", configMapVolume("c", "settings"))
		if err := manager.PutPod(pod); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		mustTearDown(t, manager, pod)
		if took := time.Since(start); took > 0 {
			t.Errorf("took %v", took)
		}
		if got := w.events.all(); len(got) > 0 {
			t.Errorf("events: %v", got)
		}
		w.assertClean()
	})
}
