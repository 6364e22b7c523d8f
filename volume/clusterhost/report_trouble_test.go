package clusterhost_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

func (n *node) wantMountedWithin(pod *v1.Pod, d time.Duration) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), d)
	defer cancel()
	if err := n.manager.WaitForMounted(ctx, pod.UID); err != nil {
		n.t.Fatal(err)
	}
}

// wantListed looks at every 50 ms whether a mounted disk is listed in use.
func (n *node) wantListed(disk string, during time.Duration) {
	n.t.Helper()
	for began := time.Now(); time.Since(began) < during; time.Sleep(50 * time.Millisecond) {
		if n.disks.isUsed(disk) && !slices.Contains(n.status().VolumesInUse, unique(disk)) {
			n.t.Errorf("disk %s is mounted, but not listed, after %s", disk, time.Since(began))
			return
		}
	}
}

// A lost report outlives the process that sent it.
func TestALostReportOfAnEarlierProcessIsRuledOut(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		n := w.node()
		n.attach("a")
		pod := diskPod("web", "a")
		n.declare(pod)
		w.transport.SetLate(on("patch", "Node"), 20*time.Second)
		n.tearDown(pod)
		synctest.Wait()
		n.stop()
		w.transport.SetLate(nil, 0)
		defer w.transport.Inject(apiFault{Match: on("patch", "Node"), Delay: 200 * time.Millisecond})()
		n.start()
		if err := n.manager.WaitForRecovery(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.declare(pod)
		n.wantMountedWithin(pod, 10*time.Second)
		n.wantListed("a", time.Minute)
		n.wantInUse("a")
		n.tearDown(pod)
		time.Sleep(time.Second)
		n.wantInUse()
	})
}

// A pod is deleted in the moment that its disk is to be mounted.
func TestADiskThatIsGivenUp(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		n := w.node()
		n.attach("a")
		pod := diskPod("web", "a")
		asked := 0
		n.disks.mounting = func(disk string) {
			asked++
			n.checkMount(disk)
			n.manager.DeletePod(pod.UID)
		}
		if err := n.manager.PutPod(pod); err != nil {
			t.Fatal(err)
		}
		n.wantInUse()
		if n.detach("a"); asked != 1 {
			t.Errorf("it was to be mounted %d times", asked)
		}
	})
}

// withoutAnnotations answers changes of annotations alone as if they were made.
func withoutAnnotations(server http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Method == http.MethodPatch {
			body, _ := io.ReadAll(q.Body)
			q.Body = io.NopCloser(bytes.NewReader(body))
			if !bytes.Contains(body, []byte(`"status"`)) {
				q.Method, q.URL.Path = http.MethodGet, strings.TrimSuffix(q.URL.Path, "/status")
			}
		}
		server.ServeHTTP(w, q)
	})
}

// Older reports are ruled out only by what was stored.
func TestAFenceThatIsNotStored(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		n := w.node()
		n.stop()
		n.attach("a")
		n.change(func(s *v1.NodeStatus) { s.VolumesInUse = []v1.UniqueVolumeName{unique("a")} })
		w.transport.SetHandler(withoutAnnotations(w.api))
		n.start()
		pod := diskPod("web", "a")
		if err := n.manager.PutPod(pod); err != nil {
			t.Fatal(err)
		}
		if time.Sleep(10 * time.Second); n.disks.isUsed("a") {
			t.Error("it is mounted, though a report may still take it off the list")
		}
		w.transport.SetHandler(w.api)
		n.wantMountedWithin(pod, time.Minute)
	})
}

// refusals answers the first reports in the server's place, and has each take effect
// late if the Node still has the version then.
type refusals struct {
	*node
	codes []int // 503 is one that client-go repeats
}

func (r *refusals) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.Method != http.MethodPatch || len(r.codes) == 0 {
		if q.Method == http.MethodPatch {
			time.Sleep(200 * time.Millisecond) // long enough to be seen unlisted
		}
		r.api.ServeHTTP(w, q)
		return
	}
	_, _ = io.Copy(io.Discard, q.Body)
	code := r.codes[0]
	r.codes = r.codes[1:]
	version := stored[*v1.Node](r.world, "Node", "", "node1").ResourceVersion
	time.AfterFunc(20*time.Second, func() {
		if stored[*v1.Node](r.world, "Node", "", "node1").ResourceVersion == version {
			r.change(func(s *v1.NodeStatus) { s.VolumesInUse = nil })
		}
	})
	w.Header().Set("Content-Type", "application/json")
	if code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d}`, code)
}

// Not every refusal says that nothing will be done.
func TestARefusedReportIsRuledOut(t *testing.T) {
	for _, codes := range [][]int{{http.StatusRequestTimeout}, {http.StatusServiceUnavailable, http.StatusForbidden}, {http.StatusServiceUnavailable, http.StatusConflict}} {
		t.Run(fmt.Sprint(codes), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				n := w.node()
				n.attach("a")
				pod := diskPod("web", "a")
				n.declare(pod)
				w.transport.SetHandler(&refusals{n, codes})
				n.tearDown(pod)
				time.Sleep(time.Duration(len(codes)-1) * 1100 * time.Millisecond) // Retry-After
				synctest.Wait()
				n.declare(pod)
				n.wantMountedWithin(pod, 10*time.Second)
				n.wantListed("a", time.Minute)
				n.wantInUse("a")
			})
		})
	}
}

// An API that is restored from a backup has a Node of an older version, or another one.
func TestReportsToARestoredAPI(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for i := range 50 {
			w.add(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: fmt.Sprint("later-", i)}})
		}
		n := w.node()
		n.attach("a")
		pod := diskPod("web", "a")
		n.declare(pod)
		if !n.isMounted(pod) {
			t.Fatal("not mounted")
		}
		time.Sleep(20 * time.Minute)
		before := n.api
		n.api = clustertest.NewServer()
		w.add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
		w.transport.SetHandler(n.api)
		before.DropWatches()
		time.Sleep(time.Minute)
		n.wantInUse("a")
		n.attach("a")
		n.tearDown(pod)
		n.wantInUse()
	})
}

func TestANodeThatMayNotBeWatched(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.api.Refuse(func(r *http.Request) *metav1.Status {
			a, _ := clustertest.ParseRequest(r)
			if a.Kind.Kind == "Node" && (a.Verb == "list" || a.Verb == "watch") {
				return clustertest.Status(http.StatusForbidden, metav1.StatusReasonForbidden, a, "no")
			}
			return nil
		})
		var log bytes.Buffer
		w.logger = slog.New(slog.NewTextHandler(&log, nil))
		n := w.node()
		pod := diskPod("web", "a")
		n.declare(pod)
		time.Sleep(time.Second)
		n.wantInUse("a")
		time.Sleep(time.Hour)
		w.api.Asked()
		time.Sleep(time.Hour)
		if n := w.asked("get Node"); n < 60 || n > 500 {
			t.Errorf("the Node was asked for %d times in an hour", n)
		}
		n.attach("a")
		n.wantMountedWithin(pod, time.Minute)
		n.tearDown(pod)
		n.stop()
		if n := strings.Count(log.String(), "WARN"); n != 1 || !strings.Contains(log.String(), "get and watch its Node") {
			t.Errorf("the log says\n%s", log.String())
		}
	})
}

func TestTwoWhoReportForANode(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
		defer w.transport.Inject(apiFault{Match: on("patch", "Node"), Delay: 5 * time.Millisecond})()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 2)
		var log bytes.Buffer
		config := clusterhost.ReportConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))}
		for _, disk := range []v1.UniqueVolumeName{"p/a", "p/b"} {
			manager := &reporter{attached: []v1.UniqueVolumeName{disk}, always: true}
			go func() {
				ended <- clusterhost.ReportVolumes(ctx, w.clientset, w.source(), "node1", manager, config)
			}()
		}
		time.Sleep(10 * time.Minute)
		if n := w.asked("patch Node"); n < 10 || n > 1000 {
			t.Errorf("%d reports in ten minutes", n)
		}
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if n := strings.Count(log.String(), "only one process"); n < 2 || n > 22 {
			t.Errorf("warned %d times:\n%s", n, log.String())
		}
	})
}
