package csi_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/podvol/podvol/util/tracing"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// spans is a tracer that writes down how spans end.
type spans struct {
	mu    sync.Mutex
	ended []string
}

func (s *spans) Start(ctx context.Context, name string, _ ...slog.Attr) (context.Context, func(error)) {
	return ctx, func(err error) {
		if err != nil {
			name += ": " + err.Error()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended = append(s.ended, name)
	}
}

// A call is a span of the operation that makes it. Of an error it has the code alone: a driver may
// repeat secrets in the text.
func TestCallsAreSpans(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	b.must(b.setUp(pvSpec(), pod("u1"), volume.MounterArgs{}))
	b.driver.Inject(csitest.Fault{Match: csitest.Method("NodePublishVolume"), Nth: 1, Err: status.Error(codes.Internal, "the password is precious")})
	traced := new(spans)
	_ = tracing.Operation(t.Context(), traced, "SetUp", nil, func(ctx context.Context) error {
		if err := b.mounter(pvSpec(), pod("u2")).SetUp(ctx, volume.MounterArgs{}); err == nil {
			t.Error("a failed call is no failure")
		}
		return nil
	})
	if want := []string{"/csi.v1.Node/NodePublishVolume: Internal", "SetUp"}; !slices.Equal(traced.ended, want) {
		t.Errorf("spans %q, want %q", traced.ended, want)
	}
	b.must(b.tearDown(pvSpec(), "u1"))
}
