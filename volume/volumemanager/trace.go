package volumemanager

import (
	"context"
	"log/slog"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/tracing"
	"github.com/podvol/podvol/volume"
)

// tracer is [Config].Tracer, with this node's name.
type tracer struct {
	to       volume.Tracer
	nodeName string
}

// span calls f as a span about a pod, and the volumes of it that are named. Attributes have the
// names of OpenTelemetry's conventions, where there is one.
func (t tracer) span(ctx context.Context, name string, pod types.NamespacedName, podUID types.UID, volumes []string, f func(context.Context) error) error {
	if t.to == nil {
		return f(ctx)
	}
	attributes := []slog.Attr{slog.String("k8s.node.name", t.nodeName), slog.String("k8s.namespace.name", pod.Namespace),
		slog.String("k8s.pod.name", pod.Name), slog.String("k8s.pod.uid", string(podUID))}
	for _, v := range volumes {
		attributes = append(attributes, slog.String("k8s.volume.name", v))
	}
	return tracing.Operation(ctx, t.to, name, attributes, f)
}
