package controller_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// node starts the machine's node, whose pods have the claims.
func (m *machine) node() (manager *volumemanager.Manager, stop func()) {
	m.t.Helper()
	plugin, err := csi.New(csi.Config{Drivers: map[string]string{driverName: m.socket}})
	if err != nil {
		m.t.Fatal(err)
	}
	manager, err = volumemanager.New(volumemanager.Config{RootDir: filepath.Join(m.root, "node"), NodeName: "node1", Objects: m.cluster.Objects(),
		Plugins: []volume.VolumePlugin{plugin}, Mounter: m.mounter, Resizes: m.cluster})
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- manager.Run(ctx) }()
	if err := manager.WaitForRecovery(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	return manager, func() {
		cancel()
		if err := errors.Join(<-ended, plugin.Close()); err != nil {
			m.t.Error(err)
		}
	}
}

// awaitClaim waits until the claim is as it should be.
func (m *machine) awaitClaim(is func(*v1.PersistentVolumeClaim) bool) {
	m.t.Helper()
	changed := make(chan struct{}, 1)
	stop := m.cluster.Objects().Watch(pvbuild.ClaimRef("data"), func(volume.ObjectRef) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer stop()
	for !is(m.claim()) {
		select {
		case <-changed:
		case <-m.t.Context().Done():
			m.t.Fatalf("the claim is %+v", m.claim().Status)
		}
	}
}

// has reports whether a claim has a size, and nothing is left to do for that.
func has(size string) func(*v1.PersistentVolumeClaim) bool {
	return func(c *v1.PersistentVolumeClaim) bool {
		got := c.Status.Capacity[v1.ResourceStorage]
		return got.String() == size && len(c.Status.AllocatedResourceStatuses) == 0 && len(c.Status.Conditions) == 0
	}
}

func (m *machine) ask(size string) {
	m.t.Helper()
	m.apply(pvbuild.NewClaim("data", size, pvbuild.OfClass("fast")))
}

// A larger claim is a larger volume: first the driver's, then on the node, and the claim says so.
func TestLargerClaimGrowsItsVolumeWithoutACluster(t *testing.T) {
	m := newMachine(t, csitest.Config{ExpandOnNode: true})
	class := newClass()
	class.AllowVolumeExpansion = new(true)
	m.apply(class)
	m.ask("1Mi")
	m.idle()
	pv := m.wantBound()
	manager, stop := m.node()
	defer func() { stop() }()
	pod := pvbuild.PodOf("data")
	pod.UID, pod.Spec.NodeName = "uid-1", "node1"
	if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	m.ask("2Mi")
	m.awaitClaim(has("2Mi"))
	for _, method := range []string{"ControllerExpandVolume", "NodeExpandVolume"} {
		calls := m.driver.CallsOf(method)
		if len(calls) != 1 || calls[0].Volume != pv.Spec.CSI.VolumeHandle {
			t.Errorf("%s was called by %v", method, calls)
		}
	}
	stop()
	m.ask("3Mi") // and the node's part comes at the next start
	m.idle()
	if c := m.claim(); c.Status.AllocatedResourceStatuses[v1.ResourceStorage] != v1.PersistentVolumeClaimNodeResizePending {
		t.Errorf("the claim is %+v", c.Status)
	}
	manager, stop = m.node()
	if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	m.awaitClaim(has("3Mi"))
	if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
}

// Whatever strikes ControllerExpandVolume, the claim gets the size, or is told why not.
func TestVolumeGrowsWhateverHappens(t *testing.T) {
	eachStrike(t, func(t *testing.T, s strike) {
		m := newMachine(t, csitest.Config{})
		class := newClass()
		class.AllowVolumeExpansion = new(true)
		m.apply(class)
		m.ask("1Mi")
		m.idle()
		m.wantBound()
		fault := s.do(m)
		fault.Match, fault.Nth, fault.After = csitest.Method("ControllerExpandVolume"), 1, s.after
		remove := m.driver.Inject(fault)
		m.ask("2Mi")
		m.idle()
		remove()
		if s.name == codes.InvalidArgument.String() {
			if got := m.claim().Status.AllocatedResourceStatuses[v1.ResourceStorage]; got != v1.PersistentVolumeClaimControllerResizeInfeasible {
				t.Errorf("the claim is %+v", m.claim().Status)
			}
			return
		}
		m.driver.Kill()
		m.startDriver()
		m.restart()
		m.apply(class)
		m.awaitClaim(has("2Mi"))
	})
}

func TestClaimIsToldThatItsVolumeDoesNotGrow(t *testing.T) {
	m := newMachine(t, csitest.Config{})
	m.ask("1Mi")
	m.idle()
	m.wantBound()
	m.ask("2Mi")
	m.idle()
	if calls := m.driver.CallsOf("ControllerExpandVolume"); len(calls) > 0 || len(m.claim().Status.AllocatedResourceStatuses) > 0 {
		t.Errorf("of a class that forbids it: %v, %+v", calls, m.claim().Status)
	}
	class := newClass()
	class.AllowVolumeExpansion = new(true)
	m.driver.Inject(csitest.Fault{Match: csitest.Method("ControllerExpandVolume"), Err: status.Error(codes.OutOfRange, "too much")})
	m.apply(class)
	m.ask("4Mi")
	m.awaitClaim(func(c *v1.PersistentVolumeClaim) bool {
		return c.Status.AllocatedResourceStatuses[v1.ResourceStorage] == v1.PersistentVolumeClaimControllerResizeInfeasible
	})
	if text := fmt.Sprint(m.claim().Status.Conditions); !strings.Contains(text, "too much") {
		t.Errorf("conditions %s", text)
	}
}

// A program that waits for what its pods' claims ask for waits for no other claim, nor for another
// attempt.
func TestClaimsOfOthersAreNotWaitedFor(t *testing.T) {
	m := newMachine(t, csitest.Config{})
	class := newClass()
	class.AllowVolumeExpansion = new(true)
	m.apply(class, pvbuild.NewClaim("copy", "1Mi", pvbuild.OfClass("fast")))
	m.ask("1Mi")
	m.idle()
	handle := m.volumeOf("data").Spec.CSI.VolumeHandle
	own := func(c csitest.Call) bool { return c.Method == "ControllerExpandVolume" && c.Volume == handle }
	hangs, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	m.driver.Inject(
		csitest.Fault{Match: func(c csitest.Call) bool { return c.Method == "ControllerExpandVolume" && !own(c) }, Nth: 1, Hook: func() { close(hangs) }, Release: release},
		csitest.Fault{Match: own, Nth: 1, Err: status.Error(codes.ResourceExhausted, "the pool is full")})
	m.apply(pvbuild.NewClaim("copy", "2Mi", pvbuild.OfClass("fast")))
	<-hangs
	m.ask("2Mi")
	pod := pvbuild.PodOf("data")
	asked := 0
	missing := m.cluster.AwaitChanges(t.Context(), func(names []types.NamespacedName) { asked += len(names) }, pod)
	if why := missing[pvbuild.ClaimRef("data").NamespacedName]; len(missing) != 1 || !strings.Contains(fmt.Sprint(why), "the pool is full") || asked > 1 {
		t.Errorf("%v, with %d claims to wait for", missing, asked)
	}
	m.awaitClaim(has("2Mi")) // by the next attempt
	if missing := m.cluster.AwaitChanges(t.Context(), nil, pod); len(missing) != 0 {
		t.Errorf("%v, of a claim that has all", missing)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	missing = m.cluster.AwaitChanges(ended, nil, pvbuild.PodOf("copy"))
	if why := missing[pvbuild.ClaimRef("copy").NamespacedName]; !errors.Is(why, context.Canceled) || !strings.Contains(why.Error(), "made larger, to 2Mi, which is not done yet") {
		t.Errorf("%v", missing)
	}
}

// A driver that dies while it makes a volume larger that a pod uses, at either part of it, does
// the rest when it is back. The pod keeps its volume.
func TestDriverDiesWhileAVolumeInUseGrows(t *testing.T) {
	for _, method := range []string{"ControllerExpandVolume", "NodeExpandVolume"} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, after its effect %v", method, after), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, csitest.Config{ExpandOnNode: true})
				class := newClass()
				class.AllowVolumeExpansion = new(true)
				m.apply(class)
				m.ask("1Mi")
				m.idle()
				m.wantBound()
				manager, stop := m.node()
				defer stop()
				pod := pvbuild.PodOf("data")
				pod.UID, pod.Spec.NodeName = "uid-1", "node1"
				if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
					t.Fatal(err)
				}
				died := make(chan struct{})
				m.driver.Inject(csitest.Fault{Match: csitest.Method(method), Nth: 1, After: after, Hook: func() { m.driver.Kill(); close(died) }})
				m.ask("2Mi")
				<-died
				m.startDriver()
				m.awaitClaim(has("2Mi"))
				if calls := m.driver.CallsOf("NodeUnpublishVolume", "NodeUnstageVolume"); len(calls) > 0 {
					t.Errorf("the pod has lost its volume: %v", calls)
				}
				if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
