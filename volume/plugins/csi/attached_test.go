package csi_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/plugins/csi"
	"github.com/podvol/podvol/volume/volumemanager"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

const uniqueName = v1.UniqueVolumeName("kubernetes.io/csi/" + driverName + "^h1")

// asked counts the look-ups of attachments.
type asked struct {
	lookUp
	n atomic.Int32
}

func (a *asked) GetVolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	a.n.Add(1)
	return a.lookUp.GetVolumeAttachment(ctx, name)
}

// attaching gives the bench a driver that attaches.
func (b *bench) attaching() *asked {
	b.object(storagev1.CSIDriverSpec{AttachRequired: new(true)})
	a := &asked{lookUp: lookUp{b.drivers, b.attachments}}
	b.host.CSIDrivers, b.host.Attachments = a, a
	return a
}

// attach makes the volume's VolumeAttachment.
func (b *bench) attach(metadata map[string]string) *storagev1.VolumeAttachment {
	a := &storagev1.VolumeAttachment{Status: storagev1.VolumeAttachmentStatus{Attached: true, AttachmentMetadata: metadata}}
	b.attachments["csi-"+sha256Hex("h1"+driverName+"node1")] = a
	return a
}

func TestWhichVolumesAreAttached(t *testing.T) {
	failing := errors.New("the API does not answer")
	for name, tc := range map[string]struct {
		spec    *volume.Spec
		prepare func(*bench)
		want    bool
		err     error
	}{
		"persistent":            {pvSpec(), func(b *bench) { b.attaching() }, true, nil},
		"no CSIDriver":          {pvSpec(), func(b *bench) { b.attaching(); delete(b.drivers, driverName) }, true, nil},
		"attachRequired: false": {pvSpec(), func(b *bench) { b.attaching(); b.object(storagev1.CSIDriverSpec{AttachRequired: new(false)}) }, false, nil},
		"inline":                {inlineSpec(), func(b *bench) { b.attaching() }, false, nil},
		"no attachments here":   {pvSpec(), func(*bench) {}, false, nil},
		"nobody can say":        {pvSpec(), func(b *bench) { b.attaching(); b.drivers[driverName] = failing }, false, failing},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, everything(), csi.Config{})
			tc.prepare(b)
			b.restart()
			if got, err := b.plugin.CanAttach(t.Context(), tc.spec); got != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// A node asks once about an attachment: when it stages, and after a restart.
func TestOneLookUpForAnAttachment(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	a := b.attaching()
	b.attach(map[string]string{"slot": "7"})
	one, two := b.mounter(pvSpec(), pod("u1")), b.mounter(pvSpec(), pod("u2"))
	b.must(b.mountDevice(pvSpec(), volume.DeviceMounterArgs{}), one.SetUp(t.Context(), volume.MounterArgs{}), two.SetUp(t.Context(), volume.MounterArgs{}))
	if n := a.n.Load(); n != 1 {
		t.Errorf("%d look-ups", n)
	}
	b.restart()
	a.n.Store(0)
	for _, uid := range []string{"u3", "u4"} {
		b.must(b.mounter(pvSpec(), pod(types.UID(uid))).SetUp(t.Context(), volume.MounterArgs{}))
		if r := lastRequest[*spec.NodePublishVolumeRequest](b, "NodePublishVolume"); r.PublishContext["slot"] != "7" {
			t.Errorf("published with %v", r.PublishContext)
		}
	}
	if n := a.n.Load(); n != 1 {
		t.Errorf("%d look-ups after the restart", n)
	}
}

// manager runs a manager with the bench's driver and roles, and the claim of pv1.
func (b *bench) manager() (m *volumemanager.Manager, stop func()) {
	b.t.Helper()
	p, err := csi.New(csi.Config{Drivers: map[string]string{driverName: b.socket}})
	b.must(err)
	store := objects.NewStore()
	b.must(store.Load(b.t.Context(), 0, boundClaim()...))
	m, err = volumemanager.New(volumemanager.Config{RootDir: b.host.RootDir, NodeName: "node1", Objects: store, CSIDrivers: b.host.CSIDrivers,
		Attachments: b.host.Attachments, Plugins: []volume.VolumePlugin{p}, Mounter: b.host.GetMounter()})
	b.must(err)
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	b.must(m.WaitForRecovery(ctx))
	return m, func() {
		cancel()
		b.must(<-done, p.Close())
	}
}

// first tells the first status that is as asked for.
func first(m *volumemanager.Manager, is func(volumemanager.VolumeStatus) bool) (found <-chan volumemanager.VolumeStatus, stop func()) {
	c := make(chan volumemanager.VolumeStatus, 1)
	return c, m.Subscribe(func(s volumemanager.VolumeStatus) {
		if !is(s) {
			return
		}
		select {
		case c <- s:
		default:
		}
	})
}

func (b *bench) wantInUse(m *volumemanager.Manager, want ...v1.UniqueVolumeName) {
	b.t.Helper()
	if got := m.VolumesInUse(); !slices.Equal(got, want) {
		b.t.Errorf("in use %v, want %v", got, want)
	}
}

func claimPod(uid string) *v1.Pod {
	p := pod(types.UID(uid))
	p.Name = uid
	p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	return p
}

// A volume of a driver that attaches is in use before it is staged, and until it is unstaged
// for sure, also for the managers that come after a crash.
func TestVolumeThatIsAttachedIsInUse(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	b.attaching()
	b.attach(map[string]string{"slot": "7"})
	m, stop := b.manager()
	web := claimPod("web")
	waits, unsubscribe := first(m, func(s volumemanager.VolumeStatus) bool { return s.Attachment != nil })
	b.must(m.PutPod(web))
	<-waits
	unsubscribe()
	b.wantInUse(m, uniqueName)
	b.wantMethods()
	m.SetVolumesAttached([]v1.AttachedVolume{{Name: uniqueName, DevicePath: "csi-x"}})
	m.ReportedInUse(m.VolumesInUse())
	b.must(m.WaitForMounted(t.Context(), web.UID))
	if r := lastRequest[*spec.NodeStageVolumeRequest](b, "NodeStageVolume"); r.PublishContext["slot"] != "7" {
		t.Errorf("staged with %v", r.PublishContext)
	}
	stop()

	b.drivers[driverName] = errors.New("the API does not answer")
	m, stop = b.manager()
	b.wantInUse(m, uniqueName)
	remove := b.driver.Inject(csitest.Fault{Match: csitest.Method("NodeUnstageVolume"), After: true, Err: status.Error(codes.Unavailable, "gone")})
	if err := m.TearDownPod(t.Context(), web.UID); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	b.wantInUse(m, uniqueName)
	stop()

	m, stop = b.manager()
	defer stop()
	b.wantInUse(m, uniqueName)
	remove()
	b.must(m.TearDownPod(t.Context(), web.UID))
	b.wantInUse(m)
	b.wantNothing()
}

// Nothing is staged while the volume is being detached, and no second pod gets it.
func TestNothingIsStagedWhileItIsDetached(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	b.attaching()
	a := b.attach(nil)
	a.DeletionTimestamp = new(metav1.Now())
	m, stop := b.manager()
	defer stop()
	m.SetVolumesAttached([]v1.AttachedVolume{{Name: uniqueName}})
	web := claimPod("web")
	waits, unsubscribe := first(m, func(s volumemanager.VolumeStatus) bool { return s.Attachment != nil })
	b.must(m.PutPod(web))
	<-waits
	unsubscribe()
	failed, unsubscribe := first(m, func(s volumemanager.VolumeStatus) bool { return s.Err != nil })
	defer unsubscribe()
	m.ReportedInUse(m.VolumesInUse())
	if s := <-failed; !errors.Is(s.Err, csi.ErrNotAttached) {
		t.Error(s.Err)
	}
	b.wantMethods()
	b.must(m.TearDownPod(t.Context(), web.UID))
	b.wantInUse(m)
}

// What another agent has left staged is in use until it is unstaged, which only a manager
// does that adopts it.
func TestWhatIsLeftStagedIsInUse(t *testing.T) {
	nstest.RunAlone(t, func(t *testing.T) {
		b := newBenchOn(t, fakehost.NewOnKernel(t, host.New(host.Config{})), everything(), csi.Config{})
		b.must(b.mountDevice(pvSpec(), volume.DeviceMounterArgs{}))
		m, stop := b.manager()
		m.PodsComplete()
		b.wantInUse(m, uniqueName)
		stop()

		m, stop = b.adopt(slog.New(slog.DiscardHandler))
		defer stop()
		b.wantInUse(m, uniqueName)
		gone, unsubscribe := first(m, func(s volumemanager.VolumeStatus) bool { return s.State == volumemanager.StateUnmounted })
		defer unsubscribe()
		m.PodsComplete()
		<-gone
		b.wantInUse(m)
		b.wantNothing()
	})
}

// A volume that is left at two places, such as an old kubelet's and today's, is in use until both
// are unstaged.
func TestWhatIsLeftTwiceIsInUse(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	m, err := b.plugin.NewDeviceMounter()
	old := filepath.Join(b.host.RootDir, "plugins/kubernetes.io/csi/pv/old/globalmount")
	b.must(err, m.MountDevice(t.Context(), pvSpec(), "", old, volume.DeviceMounterArgs{}), b.host.GetMounter().Unmount(old),
		b.mountDevice(pvSpec(), volume.DeviceMounterArgs{}))
	remove := b.driver.Inject(csitest.Fault{Err: status.Error(codes.Internal, "not yet"), Match: func(c csitest.Call) bool {
		r, ok := c.Request.(*spec.NodeUnstageVolumeRequest)
		return ok && r.StagingTargetPath != old
	}})
	manager, stop := b.adopt(slog.New(slog.DiscardHandler))
	defer stop()
	for _, path := range []string{old, b.devicePath(pvSpec())} {
		b.wantInUse(manager, uniqueName)
		gone, unsubscribe := first(manager, func(s volumemanager.VolumeStatus) bool {
			return s.State == volumemanager.StateUnmounted && s.Path == path
		})
		manager.PodsComplete()
		if path != old {
			remove()
		}
		<-gone
		unsubscribe()
	}
	b.wantInUse(manager)
	b.wantNothing()
}

// So is a volume whose data is torn, as far as the directory lets it be: it is not detached, and
// Explain and a check say why.
func TestWhatMayBeStagedIsInUse(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	b.must(b.mountDevice(pvSpec(), volume.DeviceMounterArgs{}))
	b.attaching()
	data := filepath.Join(filepath.Dir(b.devicePath(pvSpec())), "vol_data.json")
	b.must(os.WriteFile(data, nil, 0o600))
	m, stop := b.manager()
	defer stop()
	m.PodsComplete()
	m.SetVolumesAttached([]v1.AttachedVolume{{Name: uniqueName}, {Name: "kubernetes.io/csi/" + driverName + "^h2"}, {Name: "example.com/other/h1"}})
	b.wantInUse(m, uniqueName)
	rows := m.Explain()
	if len(rows) != 1 || !errors.Is(rows[0].Err, csi.ErrUnidentified) || rows[0].Path != b.devicePath(pvSpec()) || rows[0].Plugin != csi.PluginName {
		t.Errorf("explained by %+v", rows)
	}
	p, err := csi.New(csi.Config{Drivers: map[string]string{driverName: b.socket}})
	b.must(err)
	defer p.Close()
	problems, err := volumemanager.Check(t.Context(), volumemanager.Config{RootDir: b.host.RootDir, NodeName: "node1", Objects: objects.NewStore(),
		Plugins: []volume.VolumePlugin{p}, Mounter: b.host.GetMounter()})
	if err != nil || !slices.ContainsFunc(problems, func(p volumemanager.Problem) bool {
		return p.Kind == volumemanager.ProblemUnreadable && p.Path == b.devicePath(pvSpec())
	}) {
		t.Errorf("a check finds %+v, %v", problems, err)
	}
}

// So is a block volume that another agent has left published for a pod.
func TestWhatIsLeftPublishedIsInUse(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	device := pvSpec(func(pv *v1.PersistentVolume) {
		pv.Spec.VolumeMode, pv.Spec.CSI.VolumeAttributes = new(v1.PersistentVolumeBlock), map[string]string{"disk": string(csitest.File)}
	})
	mapper, err := b.plugin.NewBlockVolumeMapper(device, pod("u1"))
	b.must(err)
	_, err = mapper.SetUpDevice(t.Context())
	b.must(err)
	_, err = mapper.MapPodDevice(t.Context())
	b.must(err)
	m, stop := b.manager()
	defer stop()
	m.PodsComplete()
	b.wantInUse(m, uniqueName)
	if calls := b.driver.CallsOf("NodeUnpublishVolume", "NodeUnstageVolume"); len(calls) > 0 {
		t.Errorf("calls %v", calls)
	}
}

// A pod that uses what another agent has left staged takes it over, and unstages it.
func TestWhatIsLeftStagedIsTakenOver(t *testing.T) {
	b := newBench(t, everything(), csi.Config{})
	b.must(b.mountDevice(pvSpec(), volume.DeviceMounterArgs{}))
	m, stop := b.manager()
	defer stop()
	web := claimPod("web")
	_, err := m.SetUpPod(t.Context(), web)
	b.must(err)
	b.must(m.TearDownPod(t.Context(), web.UID))
	b.wantInUse(m)
	b.wantNothing()
}

// attachByHand has the driver attach the volume, if it attaches.
func (b *bench) attachByHand() {
	b.t.Helper()
	if !b.driver.Config().Capabilities.Attach {
		return
	}
	conn, err := csitest.Dial(b.socket)
	b.must(err)
	defer conn.Close()
	_, err = spec.NewControllerClient(conn).ControllerPublishVolume(b.t.Context(), &spec.ControllerPublishVolumeRequest{VolumeId: "h1", NodeId: "node1",
		VolumeCapability: &spec.VolumeCapability{AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}},
			AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}}})
	b.must(err)
}

// Where nobody attaches, a driver that attaches is refused before anything is done, in our words.
// Its CSIDriver object, an attachment that the host knows, or a driver that does not show its
// controller have it asked as ever.
func TestWhereNobodyAttaches(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*bench)
		refused bool
	}{
		"a driver that attaches": {func(*bench) {}, true},
		"attachRequired: false":  {func(b *bench) { b.object(storagev1.CSIDriverSpec{AttachRequired: new(false)}) }, false},
		"attached":               {func(b *bench) { b.attaching(); b.attach(nil) }, false},
		"no controller here": {func(b *bench) {
			b.driver.Inject(csitest.Fault{Match: csitest.Method("ControllerGetCapabilities"), Err: status.Error(codes.Unimplemented, "not here")})
		}, false},
		"a driver that does not attach": {func(b *bench) {
			b.kill()
			b.driver.Configure(func(c *csitest.Config) { c.Capabilities.Attach = false })
			b.again()
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dc := everything()
			dc.Capabilities.Attach = true
			b := newBench(t, dc, csi.Config{NoCluster: true})
			tc.prepare(b)
			if !tc.refused {
				b.attachByHand()
			}
			err := b.setUp(pvSpec(), pod("u1"), volume.MounterArgs{})
			if refused := errors.Is(err, csi.ErrNotAttached) && !volume.IsUncertain(err) && strings.Contains(err.Error(), driverName+" attaches its volumes"); refused != tc.refused {
				t.Errorf("%v", err)
			}
			if staged := b.driver.CallsOf("NodeStageVolume"); (len(staged) == 0) != tc.refused {
				t.Errorf("staged by %v", staged)
			}
			if tc.refused {
				b.wantNothing()
			}
		})
	}
}

// What is being attached for long is told; what has just begun, or is being detached, is not.
func TestALateAttachmentIsTold(t *testing.T) {
	r := newRegistry(t, nil)
	r.host.Attachments = lookUp{r.drivers, r.attachments}
	a := &storagev1.VolumeAttachment{}
	r.attachments["csi-"+sha256Hex("h1"+driverName+"node1")] = a
	for age, want := range map[time.Duration]bool{0: false, time.Hour: true} {
		a.CreationTimestamp = metav1.NewTime(time.Now().Add(-age))
		if err := r.plugin.CheckAttachment(t.Context(), pvSpec()); (err != nil) != want || want && !strings.Contains(err.Error(), "it is being attached since") {
			t.Errorf("after %v: %v", age, err)
		}
	}
	a.Status.AttachError = &storagev1.VolumeError{Message: "no slot is free"}
	want := `volume "h1" of driver ` + driverName + " is not attached to node node1: attaching it failed: no slot is free"
	if err := r.plugin.CheckAttachment(t.Context(), pvSpec()); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v", err)
	}
	a.Status.AttachError, a.DeletionTimestamp = nil, new(metav1.Now())
	if err := r.plugin.CheckAttachment(t.Context(), pvSpec()); err != nil {
		t.Errorf("while it is detached: %v", err)
	}
}
