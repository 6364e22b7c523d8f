package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

// spans is a volume.Tracer. One over OpenTelemetry is as short: Start calls its Tracer's Start with
// trace.WithAttributes, and the function that it returns calls RecordError and SetStatus for an
// error, and then End.
type spans struct {
	mu    sync.Mutex
	ended []string
	also  func() // is called in each call
}

type pathOf struct{}

func (s *spans) Start(ctx context.Context, name string, attributes ...slog.Attr) (context.Context, func(error)) {
	s.also()
	if parent, ok := ctx.Value(pathOf{}).(string); ok {
		name = parent + " > " + name
	}
	return context.WithValue(ctx, pathOf{}, name), func(err error) {
		s.also()
		text := name
		for _, a := range attributes {
			if a.Key == "k8s.pod.name" || a.Key == "k8s.volume.name" {
				text += " " + a.Value.String()
			}
		}
		if err != nil {
			text += ": " + err.Error()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.ended = append(s.ended, text)
	}
}

// The time of each step of each operation goes where the program's other spans go.
func ExampleConfig_tracer() {
	dir, err := os.MkdirTemp("", "node-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	mounter := fakemount.New()
	defer mounter.Close()
	objs, err := manifest.Load("../../testdata/redis-nfs.yaml")
	if err != nil {
		log.Fatal(err)
	}
	traced := &spans{also: func() {}}
	node, err := volumemanager.New(volumemanager.Config{
		RootDir: dir, NodeName: objs.NodeName, Objects: objs, Plugins: plugins.All(), Mounter: mounter, Tracer: traced,
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx) }()
	for _, pod := range objs.Pods() {
		_, err := node.SetUpPod(ctx, pod)
		if err := errors.Join(err, node.TearDownPod(ctx, pod.UID)); err != nil {
			log.Fatal(err)
		}
	}
	stop()
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Join(traced.ended, "\n"))
	// Output:
	// SetUp > resolve redis-0 redis-persistent-storage
	// SetUp > record redis-0 redis-persistent-storage
	// SetUp > plugin > mount redis-0 redis-persistent-storage
	// SetUp > plugin redis-0 redis-persistent-storage
	// SetUp > confirm redis-0 redis-persistent-storage
	// SetUp redis-0 redis-persistent-storage
	// SetUpPod redis-0
	// TearDown > plugin > unmount redis-0 redis-persistent-storage
	// TearDown > plugin redis-0 redis-persistent-storage
	// TearDown > record redis-0 redis-persistent-storage
	// TearDown redis-0 redis-persistent-storage
	// TearDownPod
}

// A tracer may call the manager, hears how an operation ended, and gets no secrets.
func TestTracerHearsOutcomesAndNoSecrets(t *testing.T) {
	const secret = "precious"
	mounter := fakemount.New()
	defer mounter.Close()
	var node *volumemanager.Manager
	traced := &spans{also: func() { node.Explain() }}
	store := objects.NewStore()
	if _, err := store.Create(t.Context(), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "key"}, Data: map[string][]byte{"password": []byte(secret)}}); err != nil {
		t.Fatal(err)
	}
	node, err := volumemanager.New(volumemanager.Config{RootDir: t.TempDir(), NodeName: "node1", Objects: store, Plugins: plugins.All(), Mounter: mounter, Tracer: traced})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx) }()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-1"}}
	pod.Spec.Volumes = []v1.Volume{
		{Name: "key", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "key"}}},
		{Name: "missing", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}}},
	}
	pod.Spec.Containers = []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "key", MountPath: "/key"}, {Name: "missing", MountPath: "/missing"}}}}
	if _, err := node.SetUpPod(ctx, pod); err == nil {
		t.Error("a missing ConfigMap is there")
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	text := strings.Join(traced.ended, "\n")
	if strings.Contains(text, secret) {
		t.Errorf("a span has the secret: %s", text)
	}
	for _, want := range []string{"SetUp > plugin web key", "SetUp web key", "shop/settings not found", "SetUpPod web: "} {
		if !strings.Contains(text, want) {
			t.Errorf("no span has %q:\n%s", want, text)
		}
	}
}
