// Package tracing takes the tracer of a caller through contexts, so that each step of an operation
// is a span below the operation's. Without a tracer it allocates nothing.
//
// Like every package below util, it carries no promise of compatibility.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
)

// Tracer is volume.Tracer, which says what it must do.
type Tracer interface {
	Start(ctx context.Context, name string, attributes ...slog.Attr) (context.Context, func(error))
}

// key is the key of a context's trace.
type key struct{}

// trace is what the spans of one operation have in common.
type trace struct {
	tracer     Tracer
	attributes []slog.Attr
}

// Operation calls f, as a span with attributes. The spans of [Step] below its context have these
// attributes too. tracer must not be nil.
func Operation(ctx context.Context, tracer Tracer, name string, attributes []slog.Attr, f func(context.Context) error) error {
	t := &trace{tracer, attributes}
	return t.span(context.WithValue(ctx, key{}, t), name, f)
}

// Step calls f, as a span of the operation whose context this is. Elsewhere it only calls f.
func Step(ctx context.Context, name string, f func(context.Context) error) error {
	t, ok := ctx.Value(key{}).(*trace)
	if !ok {
		return f(ctx)
	}
	return t.span(ctx, name, f)
}

// span ends the span also if f panics.
func (t *trace) span(ctx context.Context, name string, f func(context.Context) error) (err error) {
	inner, end := t.start(ctx, name)
	finished := false
	defer func() {
		if !finished {
			err := fmt.Errorf("%s panicked", name)
			t.end(end, err)
			return
		}
		t.end(end, err)
	}()
	err = f(inner)
	finished = true
	return err
}

// start starts a span. A tracer that panics, or returns nothing, has no span.
func (t *trace) start(ctx context.Context, name string) (inner context.Context, end func(error)) {
	defer func() {
		if recover() != nil || inner == nil {
			inner, end = ctx, nil
		}
	}()
	return t.tracer.Start(ctx, name, t.attributes...)
}

func (t *trace) end(end func(error), err error) {
	if end == nil {
		return
	}
	defer func() { _ = recover() }()
	end(err)
}
