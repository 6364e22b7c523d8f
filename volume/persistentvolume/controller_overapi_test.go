package persistentvolume_test

import (
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/rerun"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// apiVariable has the controllers of all worlds reach the store through an API
// server, client-go's informers and clientset.
const apiVariable = "PODVOL_TEST_OVER_API"

func overAPI() bool { return os.Getenv(apiVariable) != "" }

// The tests of the controller, with nothing changed but that there is an API
// server, JSON and client-go between it and the objects.
func TestTheControllersTestsOverAnAPI(t *testing.T) {
	if overAPI() {
		return // this is it
	}
	ctx, cancel := rerun.Context(t)
	defer cancel()
	args := []string{"-test.count=1", "-test.v=true", "-test.run=^Test(" + strings.Join(controllersTests(), "|") + ")$", "-rapid.checks=20"}
	command := exec.CommandContext(ctx, os.Args[0], args...)
	command.Env = append(os.Environ(), apiVariable+"=1")
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count("\n"+string(out), "\n--- PASS: "); n != len(controllersTests()) {
		t.Errorf("%d tests were run, and not %d:\n%s", n, len(controllersTests()), out)
	}
}

func controllersTests() []string {
	return []string{"ControllerConverges"}
}

// connect returns the view of the objects that the next process has, and sets what
// closes it.
func (w *world) connect() *objectstest.Client {
	w.t.Helper()
	if w.server == nil {
		client := objectstest.NewClient(w.store)
		w.close = client.Close
		return client
	}
	w.network = clustertest.NewTransport(w.server)
	process, stop := clustertest.Connect(w.t, w.server, w.network, "Pod", "PersistentVolume", "PersistentVolumeClaim", "StorageClass")
	w.close = stop
	return objectstest.NewClientOf(process)
}

// troublesOfTheAPI are the actions that only an API server knows.
func troublesOfTheAPI() []string {
	if !overAPI() {
		return nil
	}
	return []string{"outage", "throttle", "drop watches", "expire", "lose answers", "lose answers", "depose", "depose"}
}

func (w *world) trouble(a action) {
	lasts := time.Duration(a.Size) * 10 * time.Second
	network := w.network
	switch a.Do {
	case "outage":
		network.SetDown(clustertest.ErrUnreachable)
		w.server.DropWatches()
		time.AfterFunc(lasts, func() { network.SetDown(nil) })
	case "throttle":
		busy := &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Details: &metav1.StatusDetails{RetryAfterSeconds: 1}}
		w.server.Refuse(func(*http.Request) *metav1.Status { return busy })
		time.AfterFunc(lasts, func() { w.server.Refuse(nil) })
	case "drop watches":
		w.server.DropWatches()
	case "expire":
		w.server.Expire()
		w.server.DropWatches()
	case "lose answers":
		time.AfterFunc(lasts, network.Inject(fault.Fault[clustertest.Request]{Match: writesOfControllers, After: true, Err: clustertest.ErrUnreachable}))
	}
}

// writesOfControllers are those of claims and volumes. A plugin's storage is not in
// the API, but in tests.
func writesOfControllers(r clustertest.Request) bool {
	return (r.Kind.Kind == "PersistentVolume" || r.Kind.Kind == "PersistentVolumeClaim") && slices.Contains([]string{"post", "put", "delete"}, r.Verb)
}
