package podrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/standalone"
)

const manifests = `
apiVersion: v1
kind: PersistentVolume
metadata: {name: pv}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], storageClassName: "", hostPath: {path: %q}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim, namespace: default}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: default}
spec:
  volumes:
  - {name: share, nfs: {server: 10.0.0.1, path: /export}}
  - {name: data, persistentVolumeClaim: {claimName: claim}}
  containers:
  - {name: c, image: i, command: [id], volumeMounts: [{name: share, mountPath: /share}, {name: data, mountPath: /data}]}
`

// course notes the steps of a run, and whether its volume is mounted then. It is the run's
// root directory, too.
type course struct {
	t       *testing.T
	mounter *fakemount.Mounter
	dir     string
	signals Signals
	steps   []string
	code    int              // the program's
	fails   map[string]error // by the step
	// during is called in each step.
	during func(ctx context.Context, step string)
}

func (c *course) step(ctx context.Context, name string) error {
	list, err := c.mounter.List()
	if err != nil {
		c.t.Error(err)
	}
	noted := name
	if len(list) > 1 { // one is that of /
		noted += ", mounted"
	}
	c.steps = append(c.steps, noted)
	if c.during != nil {
		c.during(ctx, name)
	}
	return c.fails[name]
}

func (c *course) Path() string                     { return c.dir }
func (c *course) Remove(ctx context.Context) error { return c.step(ctx, "remove") }
func (c *course) Unlock()                          { _ = c.step(context.Background(), "unlock") }

// newCourse returns a run of a pod with a claim, and a volume that is mounted.
func newCourse(t *testing.T) (*course, *Run) {
	t.Helper()
	c := &course{t: t, mounter: fakemount.New(), dir: t.TempDir(), fails: map[string]error{}}
	t.Cleanup(func() {
		if err := c.mounter.Close(); err != nil {
			t.Error(err)
		}
	})
	base := t.TempDir()
	if err := errors.Join(os.Chmod(base, 0o755), os.Chmod(c.dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	set, err := manifest.Loader{NodeName: "node1"}.Decode("pod.yaml", fmt.Appendf(nil, manifests, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	pod := set.Pods()[0]
	program, err := Prepare(t.Context(), Options{Pod: pod, Container: &pod.Spec.Containers[0], Objects: set, NodeName: "node1"})
	if err != nil {
		t.Fatal(err)
	}
	return c, &Run{
		Program: program, Root: c, Manifests: set, Name: "a test", Timeout: time.Minute, Repair: "call the doctor",
		Node:   standalone.NodeConfig{NodeName: "node1", Mounter: c.mounter},
		Claims: standalone.ClaimsConfig{RootDir: base, Manager: "test"},
		SetUp: func(ctx context.Context, node *standalone.Node, unbound standalone.UnboundClaims) error {
			_, err := node.SetUpPod(ctx, pod)
			return errors.Join(err, unbound.Explain(nil), c.step(ctx, "set up"))
		},
		DeleteEphemeral: func(ctx context.Context, ended bool) error {
			if ended {
				return c.step(ctx, "delete ephemeral")
			}
			return c.step(ctx, "delete left")
		},
	}
}

func (c *course) run(r *Run) (code int, err error) {
	return r.do(c.t.Context(), &c.signals, func(ctx context.Context, config sandbox.Config) (int, error) {
		if len(config.Mounts) != 2 {
			c.t.Errorf("the program gets %+v", config.Mounts)
		}
		return c.code, c.step(ctx, "program")
	})
}

// However a run ends, everything is taken down in order, and the code says how it ended.
func TestRunTakesEverythingDown(t *testing.T) {
	broken := errors.New("broken")
	const begun = "delete left|set up, mounted"
	const ran = begun + "|program, mounted"
	const cleared = "|delete ephemeral|remove"
	for name, tc := range map[string]struct {
		fails      string
		code, want int
		steps      string
	}{
		"all is well":           {"", 0, 0, ran + cleared},
		"the program fails":     {"", 3, 3, ran + cleared},
		"what is left stays":    {"delete left", 0, ExitFailed, "delete left|remove"},
		"no volumes":            {"set up", 0, ExitFailed, begun + cleared},
		"no program":            {"program", 127, 127, ran + cleared},
		"claims stay":           {"delete ephemeral", 0, ExitFailed, ran + cleared},
		"the directory stays":   {"remove", 0, ExitFailed, ran + cleared + "|unlock"},
		"it stays after a code": {"remove", 3, 3, ran + cleared + "|unlock"},
	} {
		t.Run(name, func(t *testing.T) {
			c, r := newCourse(t)
			c.code = tc.code
			if tc.fails != "" {
				c.fails[tc.fails] = broken
			}
			code, err := c.run(r)
			if code != tc.want || errors.Is(err, broken) != (tc.fails != "") || (err != nil) != (tc.fails != "") {
				t.Errorf("%d, %v", code, err)
			}
			if steps := strings.Join(c.steps, "|"); steps != tc.steps {
				t.Errorf("the steps were %s\nand not %s", steps, tc.steps)
			}
			if tc.fails == "remove" && !strings.Contains(err.Error(), c.dir+" stays behind: broken; when nothing uses it any more: call the doctor") {
				t.Error(err)
			}
		})
	}
}

// A claim that cannot be bound: no program is run, and the reason is told.
func TestRunWithoutItsClaim(t *testing.T) {
	c, r := newCourse(t)
	r.Claims.RootDir = "/dev/null"
	code, err := c.run(r)
	if code != ExitFailed || err == nil || strings.Join(c.steps, "|") != "delete left|delete ephemeral|remove" {
		t.Errorf("%d, %v after %q", code, err, c.steps)
	}
}

// A volume that stays mounted may still be written to: its claim stays in use, and the
// records below the root directory stay too.
func TestRunKeepsWhatIsMounted(t *testing.T) {
	c, r := newCourse(t)
	c.mounter.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == mount.OpUnmount }, Err: unix.EPERM})
	code, err := c.run(r)
	if code != ExitFailed || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "stays behind") {
		t.Errorf("%d, %v", code, err)
	}
	if want := []string{"delete left", "set up, mounted", "program, mounted", "unlock, mounted"}; !slices.Equal(c.steps, want) {
		t.Errorf("the steps were %q", c.steps)
	}
}

// A signal ends the step that is under way, and only that.
func TestRunIsTakenDownAfterSignals(t *testing.T) {
	for _, at := range []string{"delete left", "set up", "delete ephemeral", "remove"} {
		t.Run(at, func(t *testing.T) {
			c, r := newCourse(t)
			after := false
			c.during = func(ctx context.Context, step string) {
				switch {
				case step == at:
					c.signals.deliver(unix.SIGTERM)
					if ctx.Err() == nil {
						t.Errorf("%s goes on", step)
					}
					c.fails[at] = context.Cause(ctx)
					after = true
				case after && ctx.Err() != nil:
					t.Errorf("%s is not done: %v", step, context.Cause(ctx))
				}
			}
			code, err := c.run(r)
			if code != ExitFailed || err == nil || !strings.Contains(err.Error(), "interrupted by signal") {
				t.Errorf("%d, %v", code, err)
			}
			if !slices.Contains(c.steps, "remove") {
				t.Errorf("the steps were %q", c.steps)
			}
		})
	}
}

// A run without a Timeout has the usual one, and does not leave its volumes behind.
func TestRunWithoutATimeout(t *testing.T) {
	c, r := newCourse(t)
	r.Timeout = 0
	if code, err := c.run(r); code != 0 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
}
