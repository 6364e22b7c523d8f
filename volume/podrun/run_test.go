package podrun_test

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
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/podrun"
	"github.com/podvol/podvol/volume/podrun/runroot"
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

var errEnough = errors.New("that is enough")

// newRun returns a run on a fake mounter, whose set-up mounts all volumes and then fails: so
// no program is run. It notes what is called.
func newRun(t *testing.T, fake *fakemount.Mounter, calls *[]string) *podrun.Run {
	t.Helper()
	base := t.TempDir()
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	set, err := manifest.Loader{NodeName: "node1"}.Decode("pod.yaml", fmt.Appendf(nil, manifests, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	pod := set.Pods()[0]
	program, err := podrun.Prepare(t.Context(), podrun.Options{Pod: pod, Container: &pod.Spec.Containers[0], Objects: set, NodeName: "node1"})
	if err != nil {
		t.Fatal(err)
	}
	root, err := runroot.Runs{Base: base}.New("default_web")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(root.Close)
	node := standalone.NodeConfig{NodeName: "node1", Mounter: fake}
	r := &podrun.Run{
		Program: program, Root: root, Node: node, Manifests: set, Name: "a test", Timeout: time.Minute, Repair: "repair it",
		Claims: standalone.ClaimsConfig{RootDir: base, Manager: "test"},
	}
	r.DeleteEphemeral = func(_ context.Context, ended bool) error {
		*calls = append(*calls, fmt.Sprintf("delete ended=%v mounts=%d", ended, mounts(t, fake)))
		return nil
	}
	r.SetUp = func(ctx context.Context, node *standalone.Node, unbound standalone.UnboundClaims) error {
		_, err := node.SetUpPod(ctx, pod)
		*calls = append(*calls, fmt.Sprintf("set up unbound=%d err=%v mounts=%d", len(unbound), err, mounts(t, fake)))
		return errEnough
	}
	return r
}

func mounts(t *testing.T, fake *fakemount.Mounter) int {
	t.Helper()
	list, err := fake.List()
	if err != nil {
		t.Fatal(err)
	}
	return len(list) - 1 // but that of / itself
}

// A run whose set-up fails takes everything down again, in order, and its root with it.
func TestRunTakesEverythingDown(t *testing.T) {
	fake, calls := fakemount.New(), []string(nil)
	r := newRun(t, fake, &calls)
	code, err := r.Do(t.Context())
	if code != podrun.ExitFailed || !errors.Is(err, errEnough) {
		t.Errorf("code %d, %v", code, err)
	}
	want := []string{"delete ended=false mounts=0", "set up unbound=0 err=<nil> mounts=1", "delete ended=true mounts=0"}
	if !slices.Equal(calls, want) {
		t.Errorf("called: %q\nwant:   %q", calls, want)
	}
	if _, err := os.Lstat(r.Root.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the root is left: %v", err)
	}
}

// Where something stays mounted, the root stays with its records, the claims stay in use, and
// the error says what to do.
func TestRunLeavesAMountedRoot(t *testing.T) {
	fake, calls := fakemount.New(), []string(nil)
	r := newRun(t, fake, &calls)
	fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == mount.OpUnmount }, Err: unix.EPERM})
	code, err := r.Do(t.Context())
	if code != podrun.ExitFailed || !errors.Is(err, errEnough) || !strings.Contains(err.Error(), "stays behind") || !strings.HasSuffix(err.Error(), ": repair it") {
		t.Errorf("code %d, %v", code, err)
	}
	want := []string{"delete ended=false mounts=0", "set up unbound=0 err=<nil> mounts=1"}
	if !slices.Equal(calls, want) {
		t.Errorf("called: %q\nwant:   %q", calls, want)
	}
	if _, err := os.Lstat(r.Root.Path()); err != nil {
		t.Errorf("the root is gone: %v", err)
	}
}
