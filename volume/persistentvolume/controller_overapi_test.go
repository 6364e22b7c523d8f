package persistentvolume_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/rerun"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// apiVariable has the controllers of all worlds reach the store through an API
// server, client-go's informers and clientset.
const apiVariable = "PODVOL_TEST_OVER_API"

func overAPI() bool { return os.Getenv(apiVariable) != "" }

// All tests that have a world, with nothing changed but that there is an API server,
// JSON and client-go between the controllers and the objects.
func TestTheControllersTestsOverAnAPI(t *testing.T) {
	if overAPI() {
		return // this is it
	}
	tests := testsOfWorlds(t)
	checks := "-rapid.checks=20"
	if testtool.Shortened() { // the longest are run whole where it is not
		tests, checks = slices.DeleteFunc(tests, isSweep), "-rapid.checks=5"
	}
	ctx, cancel := rerun.Context(t)
	defer cancel()
	args := []string{"-test.count=1", "-test.v=true", "-test.run=^(" + strings.Join(tests, "|") + ")$", checks}
	command := exec.CommandContext(ctx, os.Args[0], args...)
	command.Env = append(os.Environ(), apiVariable+"=1")
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count("\n"+string(out), "\n--- PASS: "); n != len(tests) {
		t.Errorf("%d tests were run, and not %d:\n%s", n, len(tests), out)
	}
}

// isSweep reports whether a test does the same again and again.
func isSweep(name string) bool {
	return strings.Contains(name, "Crash") || strings.Contains(name, "InTheMidst") || name == "TestBadInput" || name == "TestProvisionersThatReturnNonsense"
}

// testsOfWorlds returns the tests in whose functions, or in those that they call, a
// world is made. Where the store forgets, it is the embedded one, and no API's.
func testsOfWorlds(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	mentions := make(map[string]map[string]bool) // by function
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				mentions[f.Name.Name] = mentionedBy(f)
			}
		}
	}
	makes := map[string]bool{"newWorld": true}
	for grown := true; grown; {
		grown = false
		for name, mentioned := range mentions {
			if !makes[name] && name != "newForgetfulWorld" && slices.ContainsFunc(slices.Collect(maps.Keys(mentioned)), func(m string) bool { return makes[m] }) {
				makes[name], grown = true, true
			}
		}
	}
	for name := range makes {
		if strings.HasPrefix(name, "Test") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func mentionedBy(f *ast.FuncDecl) map[string]bool {
	names := make(map[string]bool)
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			names[id.Name] = true
		}
		return true
	})
	return names
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

// restoring is what users write to: what they create is as they say, with its UID
// and its status, as where a database is restored.
type restoring struct {
	objects.Writer
	server *clustertest.Server
}

func (r restoring) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return r.server.Restore(ctx, object)
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

// lateFrom has what the process writes in the next seconds take effect late, when its
// successor runs.
func (w *world) lateFrom(a action) {
	w.network.SetLate(writesOfControllers, time.Duration(a.Size)*30*time.Second)
	time.Sleep(time.Duration(a.Claim) * time.Second)
}

// writesOfControllers are those of claims and volumes. A plugin's storage is not in
// the API, but in tests.
func writesOfControllers(r clustertest.Request) bool {
	return (r.Kind.Kind == "PersistentVolume" || r.Kind.Kind == "PersistentVolumeClaim") && slices.Contains([]string{"post", "put", "delete"}, r.Verb)
}
