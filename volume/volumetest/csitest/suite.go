package csitest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// Caller is a caller of drivers under test: a node with its pods. It retries what failed
// by itself, until its context ends.
type Caller interface {
	// SetUp mounts a pod's volumes, and returns their paths by the volumes' names.
	SetUp(ctx context.Context, pod *v1.Pod) (paths map[string]string, err error)
	// TearDown unmounts them. The pod's containers are gone.
	TearDown(ctx context.Context, pod types.UID) error
	// Kill ends the caller as SIGKILL does: after it no call begins, and the disk stays.
	// It may be called while a driver works on a call, and does not wait for that.
	Kill()
}

// TokenRequester makes service account tokens, as the API's TokenRequest does; it is that
// of package volume.
type TokenRequester interface {
	RequestToken(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
}

// Labels says how the node labels containers' files; it is that of package selinux.
type Labels interface {
	FileLabel(options *v1.SELinuxOptions) (string, error)
}

// Node is where a caller works.
type Node struct {
	// RootDir holds the caller's files. It is the same after a Kill.
	RootDir string
	// RegistryDir is where drivers register themselves; empty: they do not.
	RegistryDir string
	// Drivers are the sockets of drivers by their names.
	Drivers map[string]string
	// Objects are those of the cluster: claims, PersistentVolumes, CSIDrivers, secrets.
	Objects []metav1.Object
	// Tokens makes service account tokens; nil: none are needed.
	Tokens TokenRequester
	// Labels: the node is to be taken for one with SELinux, and volumes are mounted with a label
	// where their access mode is ReadWriteOncePod; nil: it has none.
	Labels Labels
	// Republish is the time between two NodePublishVolume of a volume whose CSIDriver
	// requires them; 0: the caller's own.
	Republish time.Duration
}

// Run checks a caller of drivers. start begins one on a node; it is called again after
// each Kill and after each reboot of the node, and waits for the end of the caller before.
// Each check is a sub-test with a driver and a node of its own, on the real kernel in a
// mount namespace. waived are the names of checks that the caller is known to fail: one
// of them that passes is an error, too.
func Run(t *testing.T, start func(*testing.T, Node) Caller, waived ...string) {
	t.Helper()
	run(t, checks(), start, waived)
}

func run(t *testing.T, all map[string]func(*check), start func(*testing.T, Node) Caller, waived []string) {
	t.Helper()
	nstest.Run(t, func(t *testing.T) {
		for _, name := range waived {
			if all[name] == nil {
				t.Errorf("there is no check %q to waive", name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(all)) {
			t.Run(name, func(t *testing.T) {
				k := newCheck(t, start, slices.Contains(waived, name))
				all[name](k)
				k.end()
			})
		}
	})
}

// checks are all checks by their names.
func checks() map[string]func(*check) {
	all := mortalChecks()
	maps.Copy(all, map[string]func(*check){
		"order":     (*check).order,
		"shared":    (*check).shared,
		"inline":    (*check).inline,
		"read-only": (*check).readOnly,
		"secrets":   (*check).secrets,
		"selinux":   (*check).seLinux,
		"fsgroup":   (*check).fsGroup,
		"in-doubt":  (*check).inDoubt,
		"refused":   (*check).refused,
		"unstaging": (*check).unstaging,
		"limits":    (*check).limits,
		"reboot":    (*check).reboot,

		"expansion":         (*check).expansion,
		"expansion-refused": (*check).expansionRefused,

		"tokens":          (*check).tokens,
		"registration":    (*check).registration,
		"republish":       (*check).republish,
		"block":           (*check).block,
		"block-republish": (*check).blockRepublish,
	})
	return all
}

// patience bounds the waits of a check, which end long before unless the caller is wrong.
const checkPatience = time.Minute

// patience is short where a failure is expected.
func (k *check) patience() (context.Context, context.CancelFunc) {
	if k.waived {
		return context.WithTimeout(k.t.Context(), time.Second)
	}
	return context.WithTimeout(k.t.Context(), checkPatience)
}

// check is one check under way.
type check struct {
	t      *testing.T
	waived bool
	mu     sync.Mutex // of faults
	faults []string
	start  func(*testing.T, Node) Caller
	driver *Driver
	node   Node
	caller Caller
	pv     *v1.PersistentVolume
	// absent: the check needs what there is not here, such as loop devices.
	absent bool
}

func newCheck(t *testing.T, start func(*testing.T, Node) Caller, waived bool) *check {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	k := &check{t: t, waived: waived, start: start}
	k.driver = New(Config{Dir: t.TempDir(), Mounter: host.New(host.Config{}), CreateOnUse: true, Capabilities: AllCapabilities()})
	sockets := SocketDir(t)
	k.node = Node{RootDir: root, Drivers: map[string]string{DefaultName: filepath.Join(sockets, "s")}}
	k.pv = &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv1", UID: "pv1-uid"}}
	k.pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	k.pv.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: DefaultName, VolumeHandle: "h1"}
	k.pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "shop", Name: "data", UID: "claim-uid"}
	k.pv.Status.Phase = v1.VolumeBound
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "claim-uid"}}
	claim.Spec.VolumeName, claim.Status.Phase = "pv1", v1.ClaimBound
	claim.Spec.AccessModes = k.pv.Spec.AccessModes
	k.node.Objects = []metav1.Object{k.pv, claim}
	k.startDriver()
	t.Cleanup(func() {
		if k.caller != nil {
			k.caller.Kill()
		}
		if err := k.driver.Close(); err != nil {
			t.Error(err)
		}
		k.unmountAll() // what a wrong caller has left
	})
	return k
}

// wrong notes that the caller broke a rule.
func (k *check) wrong(format string, args ...any) {
	k.t.Helper()
	text := fmt.Sprintf(format, args...)
	k.mu.Lock()
	k.faults = append(k.faults, text)
	k.mu.Unlock()
	if !k.waived {
		k.t.Error(text)
	}
}

func (k *check) end() {
	for _, broken := range k.driver.Violations() {
		k.wrong("a rule of the specification was broken: %s", broken)
	}
	if k.waived && len(k.faults) == 0 && !k.absent {
		k.t.Error("the check is waived, and passes")
	}
}

func (k *check) startDriver() {
	k.t.Helper()
	if err := k.driver.Start(k.node.Drivers[DefaultName]); err != nil {
		k.t.Fatal(err)
	}
}

// begin starts the caller, or starts it again.
func (k *check) begin() {
	k.t.Helper()
	k.caller = k.start(k.t, k.node)
}

// describe gives the driver an object.
func (k *check) describe(spec storagev1.CSIDriverSpec) {
	if spec.FSGroupPolicy == nil {
		spec.FSGroupPolicy = new(storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
	}
	spec.AttachRequired = new(false)
	k.node.Objects = append(k.node.Objects, &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: DefaultName, UID: "driver-uid"}, Spec: spec})
}

// pod has the claim as its volume "data".
func pod(uid types.UID) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "pod-" + string(uid), UID: uid}}
	p.Spec.Containers = []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}}
	p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	return p
}

// setUp sets a pod up, and returns the path of its volume.
func (k *check) setUp(p *v1.Pod) string {
	k.t.Helper()
	ctx, cancel := k.patience()
	defer cancel()
	paths, err := k.caller.SetUp(ctx, p)
	if err != nil || paths["data"] == "" {
		k.wrong("SetUp of pod %s = %v, %v", p.UID, paths, err)
	}
	return paths["data"]
}

func (k *check) tearDown(uid types.UID) {
	k.t.Helper()
	ctx, cancel := k.patience()
	defer cancel()
	if err := k.caller.TearDown(ctx, uid); err != nil {
		k.wrong("TearDown of pod %s: %v", uid, err)
	}
}

// methods are the driver's calls for its volume, oldest first.
func (k *check) methods() (names []string) {
	for _, c := range k.driver.CallsOf("NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume") {
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(c.Method, "Node"), "Volume"))
	}
	return names
}

func (k *check) wantMethods(want ...string) {
	k.t.Helper()
	if got := k.methods(); !slices.Equal(got, want) {
		k.wrong("the calls are %v, want %v", got, want)
	}
}

// wantNothing is what must be left at the end: nothing.
func (k *check) wantNothing() {
	k.t.Helper()
	if staged, published := k.driver.Staged(), k.driver.Published(); len(staged)+len(published) > 0 {
		k.wrong("left: staged %v, published %v", staged, published)
	}
	mounts, err := k.mounts()
	if err != nil || len(mounts) > 0 {
		k.wrong("left mounted: %v, %v", mounts, err)
	}
	pods, err := os.ReadDir(filepath.Join(k.node.RootDir, "pods"))
	if len(pods) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.wrong("left of pods: %v, %v", pods, err)
	}
}

// mounts are those below the root directory, the oldest first.
func (k *check) mounts() (targets []string, err error) {
	all, err := table.Kernel().All()
	for _, e := range all {
		if strings.HasPrefix(e.Target, k.node.RootDir+"/") {
			targets = append(targets, e.Target)
		}
	}
	return targets, err
}

// unmountAll is what a reboot does to the mounts.
func (k *check) unmountAll() {
	k.t.Helper()
	targets, err := k.mounts()
	if err != nil {
		k.t.Fatal(err)
	}
	for _, target := range slices.Backward(targets) {
		if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			k.t.Fatal(err)
		}
	}
}
