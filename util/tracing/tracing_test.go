package tracing_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/tracing"
)

// recorder writes spans down as they end.
type recorder struct{ spans []string }

type nameOf struct{}

func (r *recorder) Start(ctx context.Context, name string, attributes ...slog.Attr) (context.Context, func(error)) {
	if parent, ok := ctx.Value(nameOf{}).(string); ok {
		name = parent + "/" + name
	}
	return context.WithValue(ctx, nameOf{}, name), func(err error) {
		text := name
		for _, a := range attributes {
			text += " " + a.String()
		}
		if err != nil {
			text += ": " + err.Error()
		}
		r.spans = append(r.spans, text)
	}
}

func TestStepsAreBelowTheirOperation(t *testing.T) {
	failed, r := errors.New("no room"), new(recorder)
	err := tracing.Operation(t.Context(), r, "set-up", []slog.Attr{slog.String("pod", "a")}, func(ctx context.Context) error {
		return errors.Join(
			tracing.Step(ctx, "record", func(context.Context) error { return nil }),
			tracing.Step(ctx, "plugin", func(ctx context.Context) error {
				return tracing.Step(ctx, "mount", func(context.Context) error { return failed })
			}))
	})
	if !errors.Is(err, failed) {
		t.Error(err)
	}
	want := []string{"set-up/record pod=a", "set-up/plugin/mount pod=a: no room", "set-up/plugin pod=a: no room", "set-up pod=a: no room"}
	if !slices.Equal(r.spans, want) {
		t.Errorf("%q", r.spans)
	}
}

func TestPanicOfAStepEndsItsSpan(t *testing.T) {
	r := new(recorder)
	defer func() {
		if recover() != "broken" || !slices.Equal(r.spans, []string{"set-up: set-up panicked"}) {
			t.Errorf("%q", r.spans)
		}
	}()
	_ = tracing.Operation(t.Context(), r, "set-up", nil, func(context.Context) error { panic("broken") })
}

// broken is a tracer that misbehaves in each way that it can.
type broken string

func (b broken) Start(ctx context.Context, _ string, _ ...slog.Attr) (context.Context, func(error)) {
	switch b {
	case "start panics":
		panic("start")
	case "end panics":
		return ctx, func(error) { panic("end") }
	case "no context":
		return nil, func(error) {}
	}
	return ctx, nil
}

func TestBrokenTracersHurtNobody(t *testing.T) {
	for _, b := range []broken{"start panics", "end panics", "no context", "no end"} {
		ran := false
		err := tracing.Operation(t.Context(), b, "set-up", nil, func(ctx context.Context) error {
			return tracing.Step(ctx, "plugin", func(ctx context.Context) error {
				ran = ctx != nil
				return errors.New("its own")
			})
		})
		if !ran || err == nil || !strings.Contains(err.Error(), "its own") {
			t.Errorf("%s: %v, %v", b, ran, err)
		}
	}
}

func TestNoTracerCostsNothing(t *testing.T) {
	ctx, n := t.Context(), 0
	if allocated := testing.AllocsPerRun(100, func() {
		_ = tracing.Step(ctx, "record", func(context.Context) error { n++; return nil })
	}); allocated != 0 {
		t.Errorf("%v allocations", allocated)
	}
}

func BenchmarkStepWithoutTracer(b *testing.B) {
	ctx, n := b.Context(), 0
	b.ReportAllocs()
	for b.Loop() {
		_ = tracing.Step(ctx, "record", func(context.Context) error { n++; return nil })
	}
}
