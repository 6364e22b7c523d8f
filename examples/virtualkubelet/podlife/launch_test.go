package podlife

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/volumemanager"
)

// A container whose subPath is missing is started when its volume has changed, and one
// whose environment lacks an object when that comes, whatever the pause is.
func TestAStartThatMaySucceedByNow(t *testing.T) {
	t.Run("a volume has changed", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, w *world) {
			w.failMounts(errors.New("no such key"))
			w.put(func(*v1.Pod) {})
			time.Sleep(10 * time.Minute)
			w.failMounts(nil)
			if n := len(w.started()); n != 0 {
				t.Fatalf("started %d times", n)
			}
			w.pods.VolumeChanged(volumemanager.VolumeStatus{PodUID: "uid-web", Volume: "config", Ended: "set-up"})
			if n := len(w.started()); n != 1 {
				t.Errorf("started %d times after the change", n)
			}
			w.pods.VolumeChanged(volumemanager.VolumeStatus{PodUID: "uid-web", Volume: "config", Ended: "set-up"})
			if n := len(w.started()); n != 1 {
				t.Errorf("started %d times after another change", n)
			}
		})
	})
	t.Run("a config map has come", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, w *world) {
			w.put(func(p *v1.Pod) {
				p.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "later"}}}}
			})
			time.Sleep(10 * time.Minute)
			if s := w.only(); s.State.Waiting == nil || s.State.Waiting.Reason != "CreateContainerConfigError" {
				t.Errorf("it waits: %v", s.State)
			}
			if _, err := w.source.(*objects.Store).Create(t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "later"}, Data: map[string]string{"A": "b"}}); err != nil {
				t.Fatal(err)
			}
			if n := len(w.started()); n != 1 {
				t.Fatalf("started %d times after it has come", n)
			}
			if got := w.started()[0].launch.Env.Map()["A"]; got != "b" {
				t.Errorf("A is %q", got)
			}
		})
	})
}

// Containers are told of the services of their namespace, and of the API server's.
func TestServices(t *testing.T) {
	service := func(namespace, name, ip string) *v1.Service {
		return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1.ServiceSpec{ClusterIP: ip, Ports: []v1.ServicePort{{Port: 80}}}}
	}
	for name, test := range map[string]struct {
		links *bool
		want  string
	}{"by default": {nil, "192.0.2.1 192.0.2.2"}, "without links": {new(false), "192.0.2.1"}} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, w *world) {
				for _, s := range []*v1.Service{service("default", "kubernetes", "192.0.2.1"), service("shop", "data", "192.0.2.2"), service("other", "far", "192.0.2.3")} {
					if _, err := w.api.CoreV1().Services(s.Namespace).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				w.put(func(p *v1.Pod) { p.Spec.EnableServiceLinks = test.links })
				env := w.started()[0].launch.Env.Map()
				got := strings.TrimSpace(strings.Join([]string{env["KUBERNETES_SERVICE_HOST"], env["DATA_SERVICE_HOST"], env["FAR_SERVICE_HOST"]}, " "))
				if got != test.want {
					t.Errorf("it is told of %q, want %q", got, test.want)
				}
			})
		})
	}
}

// A container that has run is started again while the API server is away, with the services
// that were known. A pod that never ran waits until the services are known.
func TestRestartWithoutAnAPIServer(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *world) {
		var away atomic.Bool
		w.api.PrependReactor("*", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
			return away.Load(), nil, errors.New("the API server is away")
		})
		data := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}, Spec: v1.ServiceSpec{ClusterIP: "192.0.2.2", Ports: []v1.ServicePort{{Port: 80}}}}
		if _, err := w.api.CoreV1().Services("shop").Create(t.Context(), data, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.put(func(*v1.Pod) {})
		away.Store(true)
		w.started()[0].end(1)
		time.Sleep(time.Minute)
		all := w.started()
		if len(all) != 2 {
			t.Fatalf("started %d times", len(all))
		}
		if got := all[1].launch.Env.Map()["DATA_SERVICE_HOST"]; got != "192.0.2.2" {
			t.Errorf("it is told of %q", got)
		}
		w.put(func(p *v1.Pod) { p.Name, p.UID = "new", "uid-new" })
		time.Sleep(time.Minute)
		if n := len(w.started()); n != 2 {
			t.Errorf("a pod that never ran has started: %d starts", n)
		}
		away.Store(false)
		time.Sleep(10 * time.Minute)
		if n := len(w.started()); n != 3 {
			t.Errorf("%d starts with the API server back", n)
		}
	})
}

// A runtime may read the pod's secrets for images. A missing one is told.
func TestPullSecrets(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *world) {
		if _, err := w.source.(*objects.Store).Create(t.Context(), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "there"}}); err != nil {
			t.Fatal(err)
		}
		w.put(func(p *v1.Pod) { p.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "gone"}, {Name: "there"}} })
		secrets := w.started()[0].launch.PullSecrets(t.Context())
		if len(secrets) != 1 || secrets[0].Name != "there" {
			t.Errorf("secrets: %v", secrets)
		}
		told := false
		for len(w.pods.Events.(*record.FakeRecorder).Events) > 0 {
			event := <-w.pods.Events.(*record.FakeRecorder).Events
			told = told || strings.Contains(event, "FailedToRetrieveImagePullSecret") && strings.Contains(event, "(gone)")
		}
		if !told {
			t.Error("the missing secret is not told")
		}
	})
}

// An image that cannot be pulled is tried again after pauses, and its status says so.
func TestImagesThatCannotBePulled(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *world) {
		w.startError = &StartError{Reason: ErrImagePull, Err: errors.New("no such image")}
		w.put(func(p *v1.Pod) { p.Spec.Containers[0].Image = "app:1" })
		if s := w.only(); s.State.Waiting == nil || s.State.Waiting.Reason != "ErrImagePull" {
			t.Errorf("after the first attempt: %v", s.State)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if s := w.only(); s.State.Waiting == nil || s.State.Waiting.Reason != "ImagePullBackOff" || !strings.Contains(s.State.Waiting.Message, `"app:1": ErrImagePull: no such image`) {
			t.Errorf("after the second attempt: %v", s.State)
		}
	})
}
