package nodeagent_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/nodeagent"
)

// spans is a volume.Tracer that sends what ends.
type spans chan string

var _ volume.Tracer = make(spans)

func (s spans) Start(ctx context.Context, name string, attributes ...slog.Attr) (context.Context, func(error)) {
	return ctx, func(err error) {
		text := name
		for _, a := range attributes {
			if a.Value.String() != "" {
				text += " " + a.Key + "=" + a.Value.String()
			}
		}
		if err == nil {
			s <- text
		}
	}
}

// A tracer hears of the volumes of pods and of the storage of claims.
func TestAgentPassesItsTracerOn(t *testing.T) {
	temp := t.TempDir()
	text := `{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data, namespace: shop}, spec: {storageClassName: here, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: here}, provisioner: kubernetes.io/host-path}
`
	if err := os.WriteFile(filepath.Join(temp, "web.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	traced := make(spans, 1000)
	agent, err := nodeagent.Start(ctx, nodeagent.Config{Dir: temp, RootDir: filepath.Join(temp, "root"), NodeName: "node1", Mounter: fakemount.New(), Tracer: traced})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	for _, want := range []string{"provision podvol.object=PersistentVolumeClaim shop/data", "SetUp k8s.node.name=node1 k8s.namespace.name=shop k8s.pod.name=web"} {
		for span := ""; !strings.HasPrefix(span, want); {
			span = <-traced // the test's time limit tells of a span that does not come
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := agent.Close(); err != nil {
		t.Error(err)
	}
}
