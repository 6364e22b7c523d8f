package processes

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/virtualkubelet/podlife"
	"github.com/podvol/podvol/volume/containermounts"
)

// Held is a runtime that runs nothing. Its containers are said to run until they are
// stopped.
type Held struct{}

var _ podlife.Runtime = Held{}

// Check refuses nothing.
func (Held) Check(*v1.Pod) error { return nil }

// MountOptions are all that mounts may ask for.
func (Held) MountOptions(context.Context, *v1.Pod) (containermounts.Options, error) {
	return containermounts.Options{Runtime: containermounts.RuntimeFeatures{RecursiveReadOnly: true, BindMountOptions: true}}, nil
}

// StartPod makes nothing.
func (Held) StartPod(context.Context, *v1.Pod) (podlife.Shared, error) { return podlife.Shared{}, nil }

// Found returns the containers that the pod's status says to run.
func (Held) Found(_ context.Context, pod *v1.Pod) (found []podlife.Found, _ error) {
	for _, s := range pod.Status.ContainerStatuses {
		if r := s.State.Running; r != nil {
			info := podlife.Info{ID: s.ContainerID, Started: r.StartedAt.Time}
			found = append(found, podlife.Found{Name: s.Name, Attempt: s.RestartCount, Info: info, Runs: newHeld(info)})
		}
	}
	return found, nil
}

// Start says that a container runs.
func (Held) Start(_ context.Context, l podlife.Launch) (podlife.Container, error) {
	return newHeld(podlife.Info{ID: "held://" + string(l.Pod.UID) + "/" + l.Spec.Name, Started: time.Now()}), nil
}

// StopPod has nothing to stop.
func (Held) StopPod(context.Context, types.UID) error { return nil }

// RemovePod has nothing to remove.
func (Held) RemovePod(context.Context, types.UID) error { return nil }

// Pods has nothing to list.
func (Held) Pods(context.Context) ([]types.UID, error) { return nil, nil }

// held is a container that is said to run.
type held struct {
	info podlife.Info
	done chan struct{}
	end  func()
}

func newHeld(info podlife.Info) *held {
	done := make(chan struct{})
	return &held{info, done, sync.OnceFunc(func() { close(done) })}
}

func (h *held) Info() podlife.Info { return h.info }

func (h *held) Wait(ctx context.Context) (podlife.Ended, error) {
	select {
	case <-h.done:
		return podlife.Ended{Started: h.info.Started, Finished: time.Now()}, nil
	case <-ctx.Done():
		return podlife.Ended{}, context.Cause(ctx)
	}
}

func (h *held) Stop(context.Context, time.Duration) error { h.end(); return nil }

func (h *held) Exec(context.Context, []string, time.Duration) (string, int, error) {
	return "", 0, nil
}
