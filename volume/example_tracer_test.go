package volume_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/podvol/podvol/volume"
)

// span and spanTracer are what the adapter needs of a Span and a Tracer of OpenTelemetry. Its
// attributes are attribute.String(key, value), its options trace.WithAttributes(…), and a failure
// is SetStatus(codes.Error, description).
type span interface {
	RecordError(error)
	Fail(description string)
	End()
}

type spanTracer interface {
	Start(ctx context.Context, name string, attributes map[string]string) (context.Context, span)
}

// adapter is a [volume.Tracer] that records spans with another tracer.
type adapter struct{ to spanTracer }

func (a adapter) Start(ctx context.Context, name string, attributes ...slog.Attr) (context.Context, func(error)) {
	values := make(map[string]string, len(attributes))
	for _, attr := range attributes {
		values[attr.Key] = attr.Value.String()
	}
	ctx, s := a.to.Start(ctx, name, values) // ctx has the span, so that the next one is its child
	return ctx, func(err error) {
		if err != nil {
			s.RecordError(err)
			s.Fail(err.Error())
		}
		s.End()
	}
}

// A tracer of OpenTelemetry is put behind the role by an adapter of a few lines, which the agent
// that uses OpenTelemetry has: podvol does not import it.
func ExampleTracer() {
	var tracer volume.Tracer = adapter{printed{}}
	ctx, endSetUp := tracer.Start(context.Background(), "set-up", slog.String("volume", "data"))
	_, endMount := tracer.Start(ctx, "mount")
	err := errors.New("the server does not answer")
	endMount(err)
	endSetUp(err)
	// Output:
	// begin set-up, of volume "data"
	// begin mount in set-up, of volume ""
	// mount failed: the server does not answer
	// set-up failed: the server does not answer
}

// printed prints spans.
type printed struct{}

type printedSpan struct{ name string }

type spanKey struct{}

func (printed) Start(ctx context.Context, name string, attributes map[string]string) (context.Context, span) {
	in := ""
	if parent, ok := ctx.Value(spanKey{}).(printedSpan); ok {
		in = " in " + parent.name
	}
	fmt.Printf("begin %s%s, of volume %q\n", name, in, attributes["volume"])
	s := printedSpan{name}
	return context.WithValue(ctx, spanKey{}, s), s
}

func (s printedSpan) RecordError(error) {}

func (s printedSpan) Fail(description string) { fmt.Println(s.name + " failed: " + description) }

func (s printedSpan) End() {}
