package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// sending is the progress of a write on its way to the API. Only Go's own
// transport reports it.
type sending struct {
	asked     atomic.Int32 // how often for a connection
	connected atomic.Int32 // how often it got one, and maybe sent the write
}

// watched returns a context for the request.
func (s *sending) watched(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { s.asked.Add(1) },
		GotConn: func(httptrace.GotConnInfo) { s.connected.Add(1) },
	})
}

// failed is [failed] for the write. It adds [objects.ErrUncertain] unless the
// write certainly had no effect.
func (s *sending) failed(op string, ref volume.ObjectRef, err error) error {
	if err == nil || !s.mayHaveTakenEffect(err) {
		return failed(op, ref, err)
	}
	return fmt.Errorf("%w: %w", failed(op, ref, err), objects.ErrUncertain)
}

func (s *sending) mayHaveTakenEffect(err error) bool {
	switch connected := s.connected.Load(); {
	case connected > 1:
		return true // client-go repeats a request with the answer 5xx and Retry-After
	case connected == 0 && s.asked.Load() > 0:
		return false
	}
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		code := status.Status().Code
		return code < http.StatusBadRequest || code == http.StatusRequestTimeout || code >= http.StatusInternalServerError
	}
	dialing, ok := errors.AsType[*net.OpError](err)
	return !utilnet.IsConnectionRefused(err) && (!ok || dialing.Op != "dial")
}
