package cluster

import (
	"context"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

// earlyFor is how long the API server may refuse to let a node watch an object that a new pod
// names: its authorizer sees the pod a moment later than the node does.
const earlyFor = 5 * time.Second

// newcomers is a handler for one new watch. It drops the messages about such refusals.
type newcomers struct {
	slog.Handler
	until time.Time
}

// quietAtFirst returns the logger of a watch that begins now.
func quietAtFirst(to *slog.Logger) klog.Logger {
	return logr.FromSlogHandler(newcomers{to.Handler(), time.Now().Add(earlyFor)})
}

// Handle implements [slog.Handler].
func (n newcomers) Handle(ctx context.Context, r slog.Record) error {
	if time.Now().Before(n.until) && saysForbidden(r) {
		return nil
	}
	return n.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (n newcomers) WithAttrs(attrs []slog.Attr) slog.Handler {
	return newcomers{n.Handler.WithAttrs(attrs), n.until}
}

// WithGroup implements [slog.Handler].
func (n newcomers) WithGroup(name string) slog.Handler {
	return newcomers{n.Handler.WithGroup(name), n.until}
}

func saysForbidden(r slog.Record) (forbidden bool) {
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		forbidden = ok && apierrors.IsForbidden(err)
		return !forbidden
	})
	return forbidden
}
