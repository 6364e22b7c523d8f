package embedded_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/plugins/hostpath"
)

// machine is one whose agent can be restarted. Volumes of class dirs are
// directories that it makes.
type machine struct {
	*embedded.Cluster
	t    *testing.T
	root string
	// mounted is what the node says is mounted.
	mu      sync.Mutex
	mounted []embedded.Mounted
	// plugins replace stock ones.
	plugins []volume.VolumePlugin
	mounter *fakemount.Mounter
	stop    func()
	// explained has a value after what is said of a claim has changed.
	explained chan struct{}
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, root: t.TempDir(), mounter: fakemount.New(), stop: func() {}, explained: make(chan struct{}, 1)}
	t.Cleanup(func() {
		m.stop()
		if err := m.mounter.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(m.base(), 0o755); err != nil {
		t.Fatal(err)
	}
	m.plugins = []volume.VolumePlugin{hostpath.New(hostpath.Config{Provision: hostpath.ProvisionConfig{Bases: []hostpath.Base{{Path: m.base()}}}})}
	m.open()
	return m
}

func (m *machine) base() string { return filepath.Join(m.root, "dirs") }

// open starts the agent, which does not run yet.
func (m *machine) open() {
	m.t.Helper()
	cluster, err := embedded.Open(m.t.Context(), embedded.Config{
		Dir: filepath.Join(m.root, "claims"), NodeName: "node1", Plugins: plugins.All(m.plugins...),
		Host: volume.Host{RootDir: m.root, Mounter: m.mounter},
		Mounted: func(context.Context) ([]embedded.Mounted, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.mounted, nil
		},
		Explained: func(types.NamespacedName) {
			select {
			case m.explained <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.Cluster = cluster
	m.stop = sync.OnceFunc(func() {
		if err := cluster.Close(); err != nil {
			m.t.Error(err)
		}
	})
}

func (m *machine) setMounted(mounted []embedded.Mounted) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mounted = mounted
}

// run has the controller run.
func (m *machine) run() {
	ctx, cancel := context.WithCancel(m.t.Context())
	ended := make(chan error, 1)
	go func(c *embedded.Cluster) { ended <- c.Run(ctx) }(m.Cluster)
	stopped := m.stop
	m.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			m.t.Errorf("Run: %v", err)
		}
		stopped()
	})
}

func (m *machine) restart() {
	m.t.Helper()
	m.stop()
	m.open()
}

// load returns what manifests declare.
func load(t *testing.T, text string) *manifest.Set {
	t.Helper()
	set, err := manifest.Loader{NodeName: "node1"}.Decode("test", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func objectsOf(t *testing.T, text string) []metav1.Object {
	t.Helper()
	all, err := load(t, text).Objects(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// mustApply applies manifests, all of which must be taken.
func (m *machine) mustApply(text string) {
	m.t.Helper()
	if err := m.Apply(m.t.Context(), objectsOf(m.t, text)...); err != nil {
		m.t.Fatal(err)
	}
}

// bind applies manifests and binds their pods.
func (m *machine) bind(text string) error {
	m.t.Helper()
	m.mustApply(text)
	return m.Bind(m.t.Context(), load(m.t, text).Pods()...)
}

func (m *machine) mustBind(text string) {
	m.t.Helper()
	if err := m.bind(text); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) claim(name string) *v1.PersistentVolumeClaim {
	m.t.Helper()
	claim, err := objects.Get[*v1.PersistentVolumeClaim](m.t.Context(), m.Objects(), volume.NewObjectRef("PersistentVolumeClaim", "default", name))
	if err != nil {
		m.t.Fatal(err)
	}
	return claim
}

func (m *machine) pv(name string) *v1.PersistentVolume {
	m.t.Helper()
	pv, err := objects.Get[*v1.PersistentVolume](m.t.Context(), m.Objects(), volume.NewObjectRef("PersistentVolume", "", name))
	if err != nil {
		m.t.Fatal(err)
	}
	return pv
}

func (m *machine) delete(kind, name string) {
	m.t.Helper()
	namespace := "default"
	if kind == "PersistentVolume" {
		namespace = ""
	}
	if err := m.Objects().Delete(m.t.Context(), volume.NewObjectRef(kind, namespace, name), objects.Preconditions{}); err != nil {
		m.t.Fatal(err)
	}
}

// eventually waits for something that objects show, or Explain says.
func (m *machine) eventually(what string, holds func() bool) {
	m.t.Helper()
	changed := make(chan struct{}, 1)
	for _, kind := range []string{"Pod", "PersistentVolumeClaim", "PersistentVolume"} {
		defer m.Objects().WatchKind(kind, func(volume.ObjectRef) {
			select {
			case changed <- struct{}{}:
			default:
			}
		})()
	}
	late := time.NewTimer(2 * time.Minute)
	defer late.Stop()
	for !holds() {
		select {
		case <-changed:
		case <-m.explained:
		case <-late.C:
			m.t.Fatalf("never: %s", what)
		}
	}
}

func (m *machine) exists(kind, name string) bool {
	m.t.Helper()
	list, err := m.Objects().List(m.t.Context(), kind, "")
	if err != nil {
		m.t.Fatal(err)
	}
	return slices.ContainsFunc(list, func(o metav1.Object) bool { return o.GetName() == name })
}

// made returns the directories that were made for claims.
func (m *machine) made() []string {
	m.t.Helper()
	names, err := filepath.Glob(filepath.Join(m.base(), "pvc-*"))
	if err != nil {
		m.t.Fatal(err)
	}
	return names
}

const (
	dirsClass = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: dirs}
provisioner: kubernetes.io/host-path
volumeBindingMode: WaitForFirstConsumer
---`
	claimOfDirs = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: dirs, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---`
	static = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: static, labels: {mine: "1"}}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], nfs: {server: s, path: /a}, mountOptions: [hard]}
---`
	claimOfStatic = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: "", accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---`
	web = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
---`
)
