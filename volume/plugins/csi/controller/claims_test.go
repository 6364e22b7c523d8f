package controller_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/plugins/csi/controller"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// machine has claims of its own, without a cluster, and a driver.
type machine struct {
	t       *testing.T
	root    string
	driver  *csitest.Driver
	socket  string
	mounter *fakemount.Mounter // the driver's, and the node's

	cluster *embedded.Cluster
	kill    context.CancelFunc // the program, not the driver
	life    context.Context    // the program's
	close   func()
}

func newMachine(t *testing.T, c csitest.Config) *machine {
	t.Helper()
	dir := csitest.SocketDir(t)
	mounter := fakemount.New()
	c.Dir, c.Mounter = t.TempDir(), mounter
	if c.Capabilities == (csitest.Capabilities{}) {
		c.Capabilities = csitest.AllCapabilities()
	}
	m := &machine{t: t, root: t.TempDir(), driver: csitest.New(c), socket: filepath.Join(dir, "s"), mounter: mounter}
	t.Cleanup(func() {
		m.close()
		if err := m.driver.Close(); err != nil {
			t.Error(err)
		}
		if broken := m.driver.Violations(); len(broken) > 0 {
			t.Errorf("rules of the specification were broken: %q", broken)
		}
	})
	m.startDriver()
	m.open()
	return m
}

func (m *machine) startDriver() {
	m.t.Helper()
	if err := m.driver.Start(m.socket); err != nil {
		m.t.Fatal(err)
	}
}

// open starts the program that has the claims.
func (m *machine) open() {
	m.t.Helper()
	plugin, err := controller.New(controller.Config{Drivers: map[string]string{driverName: m.socket}})
	if err != nil {
		m.t.Fatal(err)
	}
	cluster, err := embedded.Open(m.t.Context(), embedded.Config{Dir: filepath.Join(m.root, "claims"), NodeName: "node1",
		Plugins: []volume.VolumePlugin{plugin}, Host: volume.Host{RootDir: m.root, Mounter: fakemount.New()}})
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, kill := context.WithCancel(context.Background())
	m.cluster, m.kill, m.life = cluster, kill, ctx
	// What is not stored is there before a claim of an earlier program can need it.
	m.apply(newClass())
	for _, claim := range []string{"data", "copy"} {
		m.apply(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "safe", Name: "admin-" + claim}, Data: map[string][]byte{"password": []byte("p4ss")}})
	}
	ended := make(chan error, 1)
	go func() { ended <- cluster.Run(ctx) }()
	m.close = func() {
		kill()
		if err := errors.Join(<-ended, cluster.Close(), plugin.Close()); err != nil {
			m.t.Error(err)
		}
		m.close = func() {}
	}
	cluster.PodsComplete()
}

// restart is a new process after the end of this one.
func (m *machine) restart() {
	m.t.Helper()
	m.close()
	m.open()
}

func newClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: driverName, Parameters: map[string]string{
		"csi.storage.k8s.io/provisioner-secret-name": "admin-${pvc.name}", "csi.storage.k8s.io/provisioner-secret-namespace": "safe"}}
}

func (m *machine) apply(all ...metav1.Object) {
	m.t.Helper()
	if err := m.cluster.Apply(m.t.Context(), all...); err != nil {
		m.t.Fatal(err)
	}
}

// idle waits until there is nothing to do, or the program is killed.
func (m *machine) idle() {
	m.t.Helper()
	if err := m.cluster.Idle(m.t.Context()); err != nil && m.life.Err() == nil {
		m.t.Fatal(err)
	}
}

func (m *machine) claim() *v1.PersistentVolumeClaim {
	m.t.Helper()
	c, err := objects.Get[*v1.PersistentVolumeClaim](m.t.Context(), m.cluster.Objects(), pvbuild.ClaimRef("data"))
	if errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

func (m *machine) volumes() []string {
	m.t.Helper()
	ids, err := m.driver.Volumes()
	if err != nil {
		m.t.Fatal(err)
	}
	return ids
}

func (m *machine) wantBound() *v1.PersistentVolume {
	m.t.Helper()
	c := m.claim()
	if c == nil || c.Status.Phase != v1.ClaimBound {
		m.t.Fatalf("the claim is %+v; %v", c, m.cluster.Explain(m.t.Context(), pvbuild.ClaimRef("data").NamespacedName))
	}
	pv, err := objects.Get[*v1.PersistentVolume](m.t.Context(), m.cluster.Objects(), volume.NewObjectRef("PersistentVolume", "", c.Spec.VolumeName))
	if err != nil {
		m.t.Fatal(err)
	}
	if ids := m.volumes(); len(ids) != 1 || ids[0] != pv.Spec.CSI.VolumeHandle {
		m.t.Fatalf("the driver has %q, the PersistentVolume %+v", ids, pv.Spec.CSI)
	}
	return pv
}

func (m *machine) delete() {
	m.t.Helper()
	if err := m.cluster.Delete(m.t.Context(), pvbuild.ClaimRef("data")); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) wantNothing() {
	m.t.Helper()
	volumes, err := objects.List[*v1.PersistentVolume](m.t.Context(), m.cluster.Objects(), "PersistentVolume", "")
	if err != nil || len(volumes) > 0 || m.claim() != nil || len(m.volumes()) > 0 {
		m.t.Fatalf("left: claim %v, volumes %v, %v, storage %q", m.claim(), volumes, err, m.volumes())
	}
}

// strike is one way in which a call goes wrong.
type strike struct {
	name  string
	after bool
	// lies says that the driver answers for certain that it has not done what it did.
	lies bool
	do   func(m *machine) csitest.Fault
}

// strikes are all ways, before and after the call's effect.
func strikes() (all []strike) {
	for _, after := range []bool{false, true} {
		for _, code := range []codes.Code{codes.Canceled, codes.Unknown, codes.InvalidArgument, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted, codes.Internal, codes.Unavailable} {
			lies := after && slices.Contains([]codes.Code{codes.Unknown, codes.InvalidArgument, codes.Internal}, code)
			all = append(all, strike{code.String(), after, lies, func(*machine) csitest.Fault { return csitest.Fault{Err: status.Error(code, "struck")} }})
		}
		all = append(all,
			strike{"the driver is killed", after, false, func(m *machine) csitest.Fault { return csitest.Fault{Hook: m.driver.Kill} }},
			strike{"the program is killed", after, false, func(m *machine) csitest.Fault {
				return csitest.Fault{Hook: m.kill, Err: status.Error(codes.Unavailable, "too late")}
			}})
	}
	return all
}

// survive strikes the first call of a method while f has it made, and starts anew.
func (m *machine) survive(s strike, method string, f func()) {
	m.t.Helper()
	fault := s.do(m)
	fault.Match, fault.Nth, fault.After = csitest.Method(method), 1, s.after
	defer m.driver.Inject(fault)()
	f()
	m.idle()
	if len(m.driver.CallsOf(method)) == 0 {
		m.t.Fatalf("%s was not called", method)
	}
	m.driver.Kill()
	m.startDriver()
	m.restart()
}

func eachStrike(t *testing.T, f func(*testing.T, strike)) {
	for _, s := range strikes() {
		t.Run(fmt.Sprintf("%s, after the effect %v", s.name, s.after), func(t *testing.T) {
			t.Parallel()
			f(t, s)
		})
	}
}

// Whatever strikes CreateVolume, the claim gets one volume, and with the claim it goes.
func TestVolumeIsMadeOnceWhateverHappens(t *testing.T) {
	eachStrike(t, func(t *testing.T, s strike) {
		m := newMachine(t, csitest.Config{})
		m.survive(s, "CreateVolume", func() { m.apply(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))) })
		m.idle()
		m.wantBound()
		m.delete()
		m.idle()
		m.wantNothing()
	})
}

// A volume that may have been made for a claim that has gone is found, and deleted. As with
// external-provisioner, a driver's word that there is none is taken.
func TestVolumeOfAGoneClaimIsDeleted(t *testing.T) {
	eachStrike(t, func(t *testing.T, s strike) {
		if s.lies {
			return
		}
		m := newMachine(t, csitest.Config{})
		m.survive(s, "CreateVolume", func() { m.apply(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))) })
		m.delete()
		m.idle()
		m.wantNothing()
	})
}

func TestVolumeIsDeletedWhateverHappens(t *testing.T) {
	eachStrike(t, func(t *testing.T, s strike) {
		m := newMachine(t, csitest.Config{})
		m.apply(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
		m.idle()
		pv := m.wantBound()
		m.survive(s, "DeleteVolume", m.delete)
		m.idle()
		m.wantNothing()
		if calls := m.driver.CallsOf("DeleteVolume"); calls[0].Volume != pv.Spec.CSI.VolumeHandle {
			t.Errorf("deleted %v", calls)
		}
	})
}

// A driver that answers with a volume of somebody else, which is too small besides, does not
// lose that one's data.
func TestVolumeOfSomebodyElseIsNotDeleted(t *testing.T) {
	m := newMachine(t, csitest.Config{Misbehaviours: []csitest.Misbehaviour{csitest.CreatesTooLittle}})
	other := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	other.Spec.AccessModes, other.Spec.Capacity = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
	m.driver.Inject(csitest.Fault{Match: csitest.Method("CreateVolume"), Nth: 1, After: true, Hook: func() {
		other.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: m.volumes()[0]}
		m.apply(other)
	}})
	m.apply(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
	m.idle()
	m.restart()
	m.idle()
	if ids := m.volumes(); len(ids) != 1 || ids[0] != other.Spec.CSI.VolumeHandle || len(m.driver.CallsOf("DeleteVolume")) > 0 {
		t.Fatalf("volumes %q, calls %v", ids, m.driver.Calls())
	}
	if explained := fmt.Sprint(m.cluster.Explain(t.Context(), pvbuild.ClaimRef("data").NamespacedName)); !strings.Contains(explained, "bytes of") || !strings.Contains(explained, "PersistentVolume other") {
		t.Errorf("explained by %s", explained)
	}
}

// Of two claims that a driver answers with one volume, one gets it. The other says why, and can
// go without the data of the first.
func TestTwoClaimsNeverGetOneVolume(t *testing.T) {
	m := newMachine(t, csitest.Config{Misbehaviours: []csitest.Misbehaviour{csitest.ShortensNames}})
	m.apply(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
	m.idle()
	pv := m.wantBound()
	second := pvbuild.NewClaim("copy", "1Gi", pvbuild.OfClass("fast"))
	wantRefused := func() {
		m.t.Helper()
		m.apply(second)
		m.idle()
		explained := fmt.Sprint(m.cluster.Explain(t.Context(), pvbuild.ClaimRef("copy").NamespacedName))
		if want := fmt.Sprintf("volume %q, which PersistentVolume %q has already", pv.Spec.CSI.VolumeHandle, pv.Name); !strings.Contains(explained, want) {
			t.Errorf("explained by %s", explained)
		}
	}
	wantRefused()
	m.restart()
	wantRefused()
	if err := m.cluster.Delete(t.Context(), pvbuild.ClaimRef("copy")); err != nil {
		t.Fatal(err)
	}
	m.idle()
	if _, err := objects.Get[*v1.PersistentVolumeClaim](t.Context(), m.cluster.Objects(), pvbuild.ClaimRef("copy")); !errors.Is(err, volume.ErrNotFound) {
		t.Errorf("the second claim does not go: %v", err)
	}
	if m.wantBound(); len(m.driver.CallsOf("DeleteVolume")) > 0 {
		t.Errorf("calls %v", m.driver.Calls())
	}
	m.delete()
	m.idle()
	m.wantNothing()
}

// Nor do two claims that come at once.
func TestTwoClaimsAtOnceNeverGetOneVolume(t *testing.T) {
	m := newMachine(t, csitest.Config{Misbehaviours: []csitest.Misbehaviour{csitest.ShortensNames}})
	both := make(chan struct{}, 2)
	var made sync.WaitGroup
	made.Add(2)
	m.driver.Inject(csitest.Fault{Match: csitest.Method("CreateVolume"), After: true, Hook: func() {
		select {
		case both <- struct{}{}: // the first two answers wait for each other
			made.Done()
			made.Wait()
		default:
		}
	}})
	m.apply(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")), pvbuild.NewClaim("copy", "1Gi", pvbuild.OfClass("fast")))
	m.idle()
	volumes, err := objects.List[*v1.PersistentVolume](t.Context(), m.cluster.Objects(), "PersistentVolume", "")
	if err != nil || len(volumes) != 1 || len(m.volumes()) != 1 {
		t.Errorf("volumes %v, %v, storage %q", volumes, err, m.volumes())
	}
}

// A driver whose volumes are reachable from some places only makes them for this node.
func TestVolumeOfADriverWithTopology(t *testing.T) {
	for _, mode := range []storagev1.VolumeBindingMode{storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer} {
		t.Run(string(mode), func(t *testing.T) {
			m := newMachine(t, csitest.Config{Topology: map[string]string{"zone": "a"}})
			class, pod := newClass(), pvbuild.PodOf("data")
			class.VolumeBindingMode, pod.Spec.NodeName = &mode, "node1"
			m.apply(class, pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")), pod)
			m.idle()
			if err := m.cluster.Bind(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			m.wantBound()
		})
	}
}

// A retained volume stays, and so does one whose driver is not there.
func TestVolumeStays(t *testing.T) {
	t.Run("Retain", func(t *testing.T) {
		m := newMachine(t, csitest.Config{})
		class := newClass()
		class.ReclaimPolicy = new(v1.PersistentVolumeReclaimRetain)
		m.apply(class, pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
		m.idle()
		m.wantBound()
		m.delete()
		m.idle()
		if m.claim() != nil || len(m.volumes()) != 1 || len(m.driver.CallsOf("DeleteVolume")) > 0 {
			t.Errorf("claim %v, volumes %q, calls %v", m.claim(), m.volumes(), m.driver.Calls())
		}
	})
	t.Run("staged", func(t *testing.T) {
		m := newMachine(t, csitest.Config{})
		m.apply(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
		m.idle()
		pv := m.wantBound()
		dir := filepath.Join(m.root, "plugins/kubernetes.io/csi", driverName, sha256Hex(pv.Spec.CSI.VolumeHandle), "globalmount")
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
		m.delete()
		m.idle()
		if len(m.volumes()) != 1 || len(m.driver.CallsOf("DeleteVolume")) > 0 {
			t.Errorf("volumes %q, calls %v", m.volumes(), m.driver.Calls())
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		m.restart()
		m.idle()
		m.wantNothing()
	})
}
