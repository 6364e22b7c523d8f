package controller_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/plugins/csi/controller"
	"github.com/podvol/podvol/volume/selfattach"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// place is a machine without a cluster, with a driver that attaches.
type place struct {
	t       testing.TB
	root    string
	socket  string
	mounter *fakemount.Mounter
	driver  *csitest.Driver
	objects *objects.Store
}

func newPlace(t testing.TB, volumes ...string) *place {
	t.Helper()
	m := &place{t: t, root: t.TempDir(), socket: filepath.Join(csitest.SocketDir(t), "s"), mounter: fakemount.New(), objects: objects.NewStore()}
	config := csitest.Config{Dir: t.TempDir(), Mounter: m.mounter, CreateOnUse: true, Capabilities: csitest.AllCapabilities()}
	config.Capabilities.Attach = true
	m.driver = csitest.New(config)
	t.Cleanup(func() {
		if err := m.driver.Close(); err != nil {
			t.Error(err)
		}
		if broken := m.driver.Violations(); len(broken) > 0 {
			t.Errorf("rules of the specification were broken: %q", broken)
		}
		m.mounter.Close()
	})
	m.must(m.driver.Start(m.socket))
	for _, name := range volumes {
		m.add(name)
	}
	return m
}

func (m *place) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// add makes a volume and its claim.
func (m *place) add(name string) {
	m.t.Helper()
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		ClaimRef:    &v1.ObjectReference{Namespace: "ns", Name: name, UID: types.UID("claim-" + name)}, PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name}}},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound}}
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("claim-" + name)},
		Spec: v1.PersistentVolumeClaimSpec{VolumeName: name}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound}}
	for _, object := range []metav1.Object{pv, claim} {
		_, err := m.objects.Create(m.t.Context(), object)
		m.must(err)
	}
}

func podOf(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("pod-" + name)}, Spec: v1.PodSpec{
		Containers: []v1.Container{{Name: "c", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
		Volumes:    []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}}}
}

// agent is a program that mounts the machine's volumes.
type agent struct {
	*volumemanager.Manager
	attacher *selfattach.Attacher
	plugin   *controller.NodePlugin
	// stop ends it, and its volumes stay.
	stop func()
}

func (m *place) start() *agent {
	m.t.Helper()
	plugin, err := controller.ForNode(csi.Config{Drivers: map[string]string{driverName: m.socket}})
	m.must(err)
	plugins := []volume.VolumePlugin{plugin}
	attacher, err := selfattach.Open(selfattach.Config{Dir: filepath.Join(m.root, "attached"), SharedDir: filepath.Join(m.root, "shared"), NodeName: "n1", Plugins: plugins})
	m.must(err)
	manager, err := volumemanager.New(volumemanager.Config{RootDir: filepath.Join(m.root, "node"), NodeName: "n1", Mounter: m.mounter, Objects: m.objects, Plugins: plugins, Attachments: attacher})
	m.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- manager.Run(ctx) }()
	go func() { ended <- selfattach.Run(ctx, attacher, manager) }()
	m.must(manager.WaitForRecovery(m.t.Context()))
	return &agent{manager, attacher, plugin, func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				m.t.Error(err)
			}
		}
		plugin.Close()
	}}
}

// clearUp takes everything down, and fails if something is left.
func (m *place) clearUp(a *agent, pods ...string) {
	m.t.Helper()
	for _, name := range pods {
		m.must(a.TearDownPod(m.t.Context(), podOf(name).UID))
	}
	m.must(a.attacher.WaitForDetached(m.t.Context()))
	if attached, staged, published := m.driver.Attached(), m.driver.Staged(), m.driver.Published(); len(attached)+len(staged)+len(published) > 0 {
		m.t.Errorf("left: attached %v, staged %v, published %v", attached, staged, published)
	}
}

// again calls f until it succeeds: the error is of an attempt that a killed driver has ended.
func (m *place) again(f func() error) {
	m.t.Helper()
	err := f()
	for n := 0; err != nil && n < 10; n++ {
		err = f()
	}
	m.must(err)
}

// lifeCalls are all calls of a volume's life here, in order.
func lifeCalls() []string {
	return []string{"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"}
}

// Wherever the driver is killed, the agent goes on once it is there again, and nothing is left.
func TestTheDriverIsKilledAtEveryCall(t *testing.T) {
	for _, method := range lifeCalls() {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, after %v", method, after), func(t *testing.T) {
				m := newPlace(t, "a")
				killed, back := make(chan struct{}), make(chan struct{})
				m.driver.Inject(csitest.Fault{Match: csitest.Method(method), Nth: 1, After: after, Hook: func() { m.driver.Kill(); close(killed) }})
				go func() {
					defer close(back)
					<-killed
					if err := m.driver.Start(m.socket); err != nil {
						t.Error(err)
					}
				}()
				onceBack := func(err error) error { // a failure is of the kill
					if err != nil {
						<-back
					}
					return err
				}
				a := m.start()
				defer a.stop()
				m.again(func() error {
					_, err := a.SetUpPod(t.Context(), podOf("a"))
					return onceBack(err)
				})
				m.again(func() error { return onceBack(a.TearDownPod(t.Context(), podOf("a").UID)) })
				<-back
				m.clearUp(a)
			})
		}
	}
}

// Wherever the agent ends during a call, the next one takes over what it has begun, and nothing
// is left.
func TestTheAgentEndsAtEveryCall(t *testing.T) {
	for _, method := range lifeCalls() {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, after %v", method, after), func(t *testing.T) {
				m := newPlace(t, "a")
				hit := make(chan struct{})
				m.driver.Inject(csitest.Fault{Match: csitest.Method(method), Nth: 1, After: after, Hook: func() { close(hit) }, Release: make(chan struct{})})
				first := m.start()
				life, end := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					if _, err := first.SetUpPod(life, podOf("a")); err == nil {
						_ = first.TearDownPod(life, podOf("a").UID) // it ends by the stop
					}
				}()
				<-hit
				end()
				first.stop()
				<-ended
				m.driver.Settle()
				second := m.start()
				defer second.stop()
				_, err := second.SetUpPod(t.Context(), podOf("a"))
				m.must(err)
				m.clearUp(second, "a")
			})
		}
	}
}

// A driver whose ControllerPublishVolume hangs delays its volume only, and an end of the agent
// does not wait for it.
func TestAttachingHangs(t *testing.T) {
	names := []string{"hangs"}
	for i := range 20 {
		names = append(names, fmt.Sprint("a", i))
	}
	m := newPlace(t, names...)
	hit := make(chan struct{})
	m.driver.Inject(csitest.Fault{Match: func(c csitest.Call) bool { return c.Method == "ControllerPublishVolume" && c.Volume == "hangs" }, Nth: 1, Hook: func() { close(hit) }, Release: make(chan struct{})})
	a := m.start()
	m.must(a.PutPod(podOf("hangs")))
	<-hit
	if !slices.ContainsFunc(a.plugin.Drivers(), func(d csi.DriverStatus) bool {
		return slices.ContainsFunc(d.Calls, func(c csi.CallStatus) bool { return c.Method == "ControllerPublishVolume" && c.Volume == "hangs" })
	}) {
		t.Errorf("the call is not shown: %+v", a.plugin.Drivers())
	}
	for _, name := range names[1:] {
		_, err := a.SetUpPod(t.Context(), podOf(name))
		m.must(err)
	}
	if attached := m.driver.Attached(); len(attached) != 20 || slices.Contains(attached, "hangs") {
		t.Errorf("attached: %v", attached)
	}
	a.stop()
	m.driver.Settle()
	a = m.start()
	defer a.stop()
	for _, name := range names {
		_, err := a.SetUpPod(t.Context(), podOf(name))
		m.must(err)
	}
	m.clearUp(a, names...)
}

// The calls that attach and detach are told of as those that mount are.
func TestAllCallsAreToldOf(t *testing.T) {
	m := newPlace(t, "a", "later")
	a := m.start()
	defer a.stop()
	var mu sync.Mutex
	told := make(map[string]int)
	stop := a.plugin.Subscribe(func(o csi.Operation) {
		mu.Lock()
		defer mu.Unlock()
		if _, method, _ := strings.Cut(strings.TrimPrefix(o.Method, "/"), "/"); o.Driver == driverName && o.Code == "OK" {
			told[method]++
		}
	})
	for _, pod := range []*v1.Pod{podOf("a"), podOf("later")} {
		_, err := a.SetUpPod(t.Context(), pod)
		m.must(err)
		m.clearUp(a, pod.Name)
		stop()
	}
	mu.Lock()
	defer mu.Unlock()
	for _, method := range lifeCalls() {
		if told[method] != 1 {
			t.Errorf("told of %d calls of %s, want that of the first pod: %v", told[method], method, told)
		}
	}
}

// A volume's life with attaching: the six calls alone, and the agent's way to them, which syncs
// its records.
func BenchmarkAttachedLife(b *testing.B) {
	b.Run("calls", func(b *testing.B) {
		m := newPlace(b)
		conn, err := csitest.Dial(m.socket)
		m.must(err)
		defer conn.Close()
		control, node, dir := spec.NewControllerClient(conn), spec.NewNodeClient(conn), b.TempDir()
		m.must(os.Mkdir(filepath.Join(dir, "staging"), 0o750)) // which the caller makes
		for b.Loop() {
			m.must(bareLife(b.Context(), control, node, dir))
		}
	})
	b.Run("agent", func(b *testing.B) {
		m := newPlace(b, "a")
		a := m.start()
		defer a.stop()
		var mounted time.Duration
		for b.Loop() {
			began := time.Now()
			_, err := a.SetUpPod(b.Context(), podOf("a"))
			m.must(err)
			mounted += time.Since(began)
			m.must(a.TearDownPod(b.Context(), podOf("a").UID))
			m.must(a.attacher.WaitForDetached(b.Context()))
		}
		b.ReportMetric(float64(mounted.Nanoseconds())/float64(b.N), "mounted-ns/op")
	})
}

func bareLife(ctx context.Context, control spec.ControllerClient, node spec.NodeClient, dir string) error {
	staging, target := filepath.Join(dir, "staging"), filepath.Join(dir, "target")
	c := &spec.VolumeCapability{AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}
	at, err := control.ControllerPublishVolume(ctx, &spec.ControllerPublishVolumeRequest{VolumeId: "a", NodeId: "node1", VolumeCapability: c})
	if err != nil {
		return err
	}
	for _, call := range []func() error{
		func() error {
			_, err := node.NodeStageVolume(ctx, &spec.NodeStageVolumeRequest{VolumeId: "a", StagingTargetPath: staging, VolumeCapability: c, PublishContext: at.PublishContext})
			return err
		},
		func() error {
			_, err := node.NodePublishVolume(ctx, &spec.NodePublishVolumeRequest{VolumeId: "a", StagingTargetPath: staging, TargetPath: target, VolumeCapability: c})
			return err
		},
		func() error {
			_, err := node.NodeUnpublishVolume(ctx, &spec.NodeUnpublishVolumeRequest{VolumeId: "a", TargetPath: target})
			return err
		},
		func() error {
			_, err := node.NodeUnstageVolume(ctx, &spec.NodeUnstageVolumeRequest{VolumeId: "a", StagingTargetPath: staging})
			return err
		},
		func() error {
			_, err := control.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{VolumeId: "a", NodeId: "node1"})
			return err
		},
	} {
		if err := call(); err != nil {
			return err
		}
	}
	return nil
}
