package clusterhost_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

func TestMain(m *testing.M) {
	// They log, and pause by a clock that virtual time turns back.
	utilruntime.ErrorHandlers = nil
	testtool.Shorten()
	noleak.Main(m)
}

// world is an API in virtual time, and what is needed of a node.
type world struct {
	t         *testing.T
	api       *clustertest.Server
	transport *clustertest.Transport
	clientset kubernetes.Interface
	root      string
	mounter   *fakemount.Mounter
	logger    *slog.Logger // takes what is logged about reports; nil: nobody does
}

func inWorld(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	root := t.TempDir() // its removal is no part of virtual time
	synctest.Test(t, func(t *testing.T) {
		api := clustertest.NewServer()
		transport := clustertest.NewTransport(api)
		w := &world{t: t, api: api, transport: transport, clientset: clustertest.Clientset(t, "http://api", transport), root: root, mounter: fakemount.New()}
		t.Cleanup(func() {
			if err := w.mounter.Close(); err != nil {
				t.Error(err)
			}
		})
		f(t, w)
	})
}

// add stores objects, past all faults.
func (w *world) add(all ...metav1.Object) {
	w.t.Helper()
	for _, o := range all {
		w.api.Direct(w.t, http.MethodPost, o)
	}
}

// source is a client of the API without shared kinds.
func (w *world) source() *cluster.Client {
	w.t.Helper()
	c, err := cluster.FromInformers(nil, w.clientset, cluster.Config{Shared: []string{}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(c.Close)
	return c
}

// run runs a volume manager until stop, or the test, ends it.
func (w *world) run(config volumemanager.Config) (manager *volumemanager.Manager, stop func()) {
	w.t.Helper()
	config.RootDir, config.NodeName, config.Mounter = w.root, "node1", w.mounter
	if config.Plugins == nil {
		config.Plugins = plugins.All()
	}
	if config.Objects == nil {
		config.Objects = w.source()
	}
	manager, err := volumemanager.New(config)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	w.t.Cleanup(stop)
	return manager, stop
}

// stored returns an object as the API has it.
func stored[T metav1.Object](w *world, kind, namespace, name string) T {
	w.t.Helper()
	object, err := objects.Get[T](context.Background(), w.api.Store(), volume.NewObjectRef(kind, namespace, name))
	if err != nil {
		w.t.Fatal(err)
	}
	return object
}

// asked counts the requests since the last call whose text begins so.
func (w *world) asked(prefix string) (n int) {
	for _, request := range w.api.Asked() {
		if strings.HasPrefix(request, prefix) {
			n++
		}
	}
	return n
}

// file is a file of a projected volume; empty if it cannot be read.
func (w *world) file(pod *v1.Pod, name string) string {
	data, err := os.ReadFile(filepath.Join(w.root, "pods", string(pod.UID), "volumes/kubernetes.io~projected", pod.Spec.Volumes[0].Name, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.t.Error(err)
	}
	return string(data)
}

// projected is a pod with one volume, and stored in the API.
func (w *world) projected(name string, sources ...v1.VolumeProjection) *v1.Pod {
	w.t.Helper()
	w.add(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: name},
		Spec: v1.PodSpec{ServiceAccountName: "app", NodeName: "node1", Containers: []v1.Container{{Name: "main", Image: "none", VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
			Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: sources}}}}}})
	return stored[*v1.Pod](w, "Pod", "ops", name)
}

// events are those that a sink has got.
type events struct {
	mu  sync.Mutex
	all []told
}

type told struct {
	pod             types.UID
	reason, message string
}

func (e *events) Event(pod *v1.Pod, _, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, told{pod.UID, reason, message})
}

func (e *events) taken() []told {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.all
	e.all = nil
	return all
}

// on selects requests by verb and kind.
func on(verb, kind string) func(clustertest.Request) bool {
	return func(r clustertest.Request) bool { return r.Verb == verb && r.Kind.Kind == kind }
}

type apiFault = fault.Fault[clustertest.Request]
