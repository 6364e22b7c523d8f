package criruntime

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// starter is a runtime that takes a while to start a container, and says it is not wanted
// meanwhile.
type starter struct {
	cri.RuntimeServiceClient
	takes    time.Duration
	unwanted func()
	asked    int
}

func (s *starter) StartContainer(ctx context.Context, _ *cri.StartContainerRequest, _ ...grpc.CallOption) (*cri.StartContainerResponse, error) {
	s.asked++
	s.unwanted()
	select {
	case <-time.After(s.takes):
		return &cri.StartContainerResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A container that starts while its pod is deleted counts as started. A runtime that does not
// answer is waited for no longer than startWait, and what is not wanted is not started.
func TestStartIsNotCutOff(t *testing.T) {
	for name, test := range map[string]struct {
		takes time.Duration
		ended bool // before the start
		err   error
		after time.Duration
		asked int
	}{
		"it starts meanwhile": {takes: time.Second, after: time.Second, asked: 1},
		"it hangs":            {takes: time.Hour, err: context.Canceled, after: startWait, asked: 1},
		"it was deleted":      {ended: true, err: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if test.ended {
					cancel()
				}
				s, begun := &starter{takes: test.takes, unwanted: cancel}, time.Now()
				r := &Runtime{service: s}
				if err := r.startContainer(ctx, "id"); !errors.Is(err, test.err) || time.Since(begun) != test.after || s.asked != test.asked {
					t.Errorf("got %v after %v, asked %d times", err, time.Since(begun), s.asked)
				}
			})
		})
	}
}
