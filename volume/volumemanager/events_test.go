package volumemanager_test

import (
	"context"
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/volumemanager"
)

// curiousSink asks the manager about each event that it gets.
type curiousSink struct {
	t       *testing.T
	manager *volumemanager.Manager
	got     chan string
}

func (s *curiousSink) Event(pod *v1.Pod, _, reason, _ string) {
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		s.manager.Explain()
		if err := s.manager.PutPod(pod); err != nil {
			s.t.Error(err)
		}
	}()
	select {
	case <-asked:
	case <-time.After(time.Minute):
		s.t.Errorf("the manager does not answer while event %s is sent", reason)
	}
	s.got <- reason
}

func (s *curiousSink) expect(reason string) {
	s.t.Helper()
	for {
		select {
		case got := <-s.got:
			if got == reason {
				return
			}
		case <-time.After(time.Minute):
			s.t.Fatalf("no event %s", reason)
		}
	}
}

func TestEventSinksMayAskTheManager(t *testing.T) {
	w := newWorld(t)
	sink := &curiousSink{t: t, got: make(chan string, 100)}
	config := w.config()
	config.Events = sink
	manager, err := volumemanager.New(config)
	if err != nil {
		t.Fatal(err)
	}
	sink.manager = manager
	w.run(manager)

	group := int64(2000)
	pod := newPod("web", nfsVolume("share", answering))
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	remove := w.fake.Inject(fakemount.Fault{Match: isMount, Nth: 1, Err: errors.New("refused")})
	if _, err := manager.SetUpPod(t.Context(), pod); err == nil {
		t.Fatal("the mount was not refused")
	}
	sink.expect("FailedMount")
	remove()
	mustSetUp(t, manager, pod)
	sink.expect("FSGroupNotApplied")
	if err := w.fake.Unmount(statusOf(t, manager, "web").Path); err != nil {
		t.Fatal(err)
	}
	sink.expect("VolumeMountVanished")
	mustTearDown(t, manager, pod)
	w.assertClean()
}

// sinkOf keeps what pods are told.
type sinkOf chan string

func (s sinkOf) Event(_ *v1.Pod, _, reason, message string) { s <- reason + ": " + message }

// A set-up that is given up because the agent ends has not failed, whatever the cause that
// the agent gives its context.
func TestNoEventWhereTheAgentEnds(t *testing.T) {
	for _, cause := range []error{nil, errors.New("the agent is updated")} {
		w := newWorld(t)
		events := make(sinkOf, 100)
		config := w.config()
		config.Events = events
		manager, err := volumemanager.New(config)
		if err != nil {
			t.Fatal(err)
		}
		mounting, release := make(chan struct{}, 100), make(chan struct{})
		w.fake.Inject(fakemount.Fault{Release: release, Match: func(c fakemount.Call) bool {
			if isMount(c) {
				mounting <- struct{}{}
			}
			return isMount(c)
		}})
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- manager.Run(ctx) }()
		if err := manager.PutPod(newPod("web", nfsVolume("share", answering))); err != nil {
			t.Fatal(err)
		}
		<-mounting
		cancel(cause)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		close(release)
		select {
		case told := <-events:
			t.Errorf("with the cause %v: %s", cause, told)
		default:
		}
	}
}
