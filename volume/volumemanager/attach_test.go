package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// node is the status of the node, which a controller and the manager share.
type node struct {
	manager  *volumemanager.Manager
	attached []v1.AttachedVolume
}

func unique(disk string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName(diskPlugin + "/" + disk)
}

// report puts the volumes in use into the node's status.
func (n *node) report() { n.manager.ReportedInUse(n.manager.VolumesInUse()) }

func (n *node) attach(disks ...string) {
	for _, d := range disks {
		n.attached = append(n.attached, v1.AttachedVolume{Name: unique(d), DevicePath: "/dev/" + d})
	}
	n.manager.SetVolumesAttached(n.attached)
}

func (n *node) detachAll() {
	n.attached = nil
	n.manager.SetVolumesAttached(nil)
}

func inUse(disks ...string) []v1.UniqueVolumeName {
	names := []v1.UniqueVolumeName{}
	for _, d := range disks {
		names = append(names, unique(d))
	}
	return names
}

func assertInUse(t *testing.T, m *volumemanager.Manager, disks ...string) {
	t.Helper()
	if diff := cmpDiff(inUse(disks...), m.VolumesInUse()); diff != "" {
		t.Errorf("VolumesInUse:\n%s", diff)
	}
}

func rowOf(t *testing.T, m *volumemanager.Manager, pod string) volumemanager.VolumeStatus {
	t.Helper()
	for _, row := range m.Explain() {
		if row.Pod.Name == pod {
			return row
		}
	}
	t.Fatalf("no row of pod %s", pod)
	return volumemanager.VolumeStatus{}
}

func declare(t *testing.T, m *volumemanager.Manager, pods ...*v1.Pod) {
	t.Helper()
	for _, pod := range pods {
		if err := m.PutPod(pod); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
}

// A volume is mounted when it is reported in use and attached, whichever comes
// last, and until then it costs nothing.
func TestAttachableVolumeWaitsForReports(t *testing.T) {
	for _, inUseFirst := range []bool{true, false} {
		t.Run(fmt.Sprint("in use first ", inUseFirst), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				d := w.withAttachableDisks()
				manager, stop := w.start()
				defer stop()
				n := &node{manager: manager}
				pod, other := diskPod("web", "a"), diskPod("other", "b")
				declare(t, manager, pod, other)
				assertInUse(t, manager, "a", "b")
				assertWaits(t, manager, volumemanager.AttachmentError{Volume: unique("a"), Node: "node1"})
				if inUseFirst {
					n.report()
				} else {
					n.attach("a")
				}
				time.Sleep(time.Hour)
				assertWaits(t, manager, volumemanager.AttachmentError{Volume: unique("a"), Node: "node1", ReportedInUse: inUseFirst, Attached: !inUseFirst})
				if got := append(d.log(), w.events.all()...); len(got) > 0 || len(w.records()) > 0 {
					t.Errorf("something was done meanwhile: %q, records %v", got, w.records())
				}
				began := time.Now()
				if inUseFirst {
					n.attach("a")
				} else {
					manager.ReportedInUse(inUse("a"))
				}
				if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil || time.Since(began) > 0 {
					t.Errorf("mounted after %s, %v", time.Since(began), err)
				}
				want := []diskCall{
					{Op: "WaitForAttach", Whose: "a", Device: "/dev/a", Args: "uid-web 10m0s"},
					{Op: "MountDevice", Whose: "a", Device: "/dev/a-part1"}, {Op: "SetUp", Whose: "uid-web"},
				}
				if diff := cmpDiff(want, d.calls.Calls()); diff != "" {
					t.Error(diff)
				}
				if row := rowOf(t, manager, "web"); row.Attachment != nil || row.Err != nil {
					t.Errorf("the mounted one: %+v", row)
				}
				if row := rowOf(t, manager, "other"); row.State != volumemanager.StatePending || row.Attachment == nil {
					t.Errorf("the other one: %+v", row)
				}
				mustTearDown(t, manager, pod, other)
				w.assertNoDevices()
				assertInUse(t, manager)
			})
		})
	}
}

func assertWaits(t *testing.T, m *volumemanager.Manager, want volumemanager.AttachmentError) {
	t.Helper()
	row := rowOf(t, m, "web")
	if row.State != volumemanager.StatePending || row.Operation != "" || row.Err != nil || row.Failures != 0 || !row.NextRetry.IsZero() {
		t.Errorf("row = %+v", row)
	}
	if diff := cmpDiff(&want, row.Attachment); diff != "" {
		t.Error(diff)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err := m.WaitForMounted(ctx, "uid-web")
	var pending *volumemanager.PendingError
	var missing *volumemanager.AttachmentError
	if !errors.As(err, &pending) || !errors.As(err, &missing) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("WaitForMounted: %v", err)
		return
	}
	text := pending.Waits + missing.Error()
	if !want.Attached && !strings.Contains(text, "to be reported attached") || !want.ReportedInUse && !strings.Contains(text, "status of node node1 to list") {
		t.Errorf("it does not say what for: %v", err)
	}
}

func TestSetUpPodWaitsForTheAttachment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.withAttachableDisks()
		manager, stop := w.start()
		defer stop()
		n := &node{manager: manager}
		pod := diskPod("web", "a")
		result := make(chan error, 1)
		go func() {
			_, err := manager.SetUpPod(t.Context(), pod)
			result <- err
		}()
		synctest.Wait()
		n.report()
		synctest.Wait()
		select {
		case err := <-result:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		n.attach("a")
		if err := <-result; err != nil {
			t.Error(err)
		}
		mustTearDown(t, manager, pod)
		w.assertNoDevices()
	})
}

// The volume is in the list from before the device is mounted until after it
// is unmounted, also when the pod has gone long before.
func TestVolumeStaysInUseUntilItsDeviceIsUnmounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.withAttachableDisks()
		manager, _ := w.start()
		n := &node{manager: manager}
		lists := map[string][]v1.UniqueVolumeName{}
		d.calls.Inject(fault.Fault[diskCall]{After: true, Hook: func() { lists["any"] = manager.VolumesInUse() }, Match: func(c diskCall) bool {
			return c.Op != "WaitForAttach" || c.Whose != ""
		}})
		pod := diskPod("web", "a")
		n.attach("a")
		if err := manager.PutPod(pod); err != nil {
			t.Fatal(err)
		}
		n.reportWhen(t, "a")
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		busy := errors.New("device is busy")
		remove := d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("UnmountDevice"), Err: busy})
		if err := manager.TearDownPod(t.Context(), pod.UID); !errors.Is(err, busy) {
			t.Fatal(err)
		}
		assertInUse(t, manager, "a")
		remove()
		mustTearDown(t, manager, pod)
		if diff := cmpDiff(inUse("a"), lists["any"]); diff != "" { // the last call's: UnmountDevice
			t.Error(diff)
		}
		assertInUse(t, manager)
		w.assertNoDevices()
	})
}

// reportWhen reports once the disks are in use, as a node does that subscribes.
func (n *node) reportWhen(t *testing.T, disks ...string) {
	t.Helper()
	changed := make(chan struct{}, 1)
	defer n.manager.Subscribe(func(volumemanager.VolumeStatus) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	for {
		if cmpDiff(inUse(disks...), n.manager.VolumesInUse()) == "" {
			n.report()
			return
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatalf("in use: %v", n.manager.VolumesInUse())
		}
	}
}

// A report that left a volume out may be on its way to whoever detaches, so an
// older acknowledgement does not count any more.
func TestAcknowledgementIsTakenBack(t *testing.T) {
	for _, listed := range []bool{true, false} {
		t.Run(fmt.Sprint("listed without it ", listed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.withAttachableDisks()
				manager, stop := w.start()
				defer stop()
				n := &node{manager: manager}
				n.attach("a")
				pod := diskPod("web", "a")
				declare(t, manager, pod)
				n.report()
				if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
					t.Fatal(err)
				}
				mustTearDown(t, manager, pod)
				if listed {
					assertInUse(t, manager)
				}
				declare(t, manager, pod)
				if got := rowOf(t, manager, "web").State == volumemanager.StatePending; got != listed {
					t.Errorf("waits: %v", got)
				}
				n.report()
				if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestVolumeIsDetachedUnderItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.withAttachableDisks()
		manager, stop := w.start()
		defer stop()
		n := &node{manager: manager}
		n.attach("a")
		pod := diskPod("web", "a")
		declare(t, manager, pod)
		n.report()
		synctest.Wait()
		d.log()
		var seen []*volumemanager.AttachmentError
		defer manager.Subscribe(func(s volumemanager.VolumeStatus) { seen = append(seen, s.Attachment) })()
		n.detachAll()
		synctest.Wait()
		row := rowOf(t, manager, "web")
		want := &volumemanager.AttachmentError{Volume: unique("a"), Node: "node1", ReportedInUse: true, Mounted: true}
		if diff := cmpDiff(want, row.Attachment); diff != "" || row.State != volumemanager.StateMounted || len(seen) == 0 {
			t.Errorf("row %+v, seen %d\n%s", row, len(seen), diff)
		}
		if got := d.log(); len(got) > 0 {
			t.Errorf("something was done: %v", got)
		}
		// Another pod is not bound to what may be gone.
		late := diskPod("late", "a")
		declare(t, manager, late)
		if row := rowOf(t, manager, "late"); row.State != volumemanager.StatePending || row.Attachment == nil {
			t.Errorf("the late one: %+v", row)
		}
		n.attach("a")
		synctest.Wait()
		if row := rowOf(t, manager, "web"); row.Attachment != nil {
			t.Errorf("attached again: %+v", row)
		}
		if diff := cmpDiff([]string{"SetUp uid-late"}, d.log()); diff != "" {
			t.Error(diff)
		}
		mustTearDown(t, manager, pod, late)
		w.assertNoDevices()
	})
}

// After a restart nobody has reported anything yet: what is mounted stays so,
// what is new waits.
func TestRestartWithAttachedVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.withAttachableDisks()
		manager, stop := w.start()
		n := &node{manager: manager}
		n.attach("a", "b")
		one, two := diskPod("one", "a"), diskPod("two", "b")
		declare(t, manager, one, two)
		n.report()
		synctest.Wait()
		stop()
		d.log()

		manager, err := volumemanager.New(w.config())
		if err != nil {
			t.Fatal(err)
		}
		if got := manager.VolumesInUse(); got != nil {
			t.Errorf("in use before the records are read: %v", got)
		}
		defer w.run(manager)()
		assertInUse(t, manager, "a", "b")
		if row := rowOf(t, manager, "two"); row.Attachment != nil || row.State != volumemanager.StateMounted {
			t.Errorf("nobody has said anything: %+v", row)
		}
		late := diskPod("late", "a")
		declare(t, manager, one, late)
		if err := manager.WaitForMounted(t.Context(), one.UID); err != nil {
			t.Error(err)
		}
		if row := rowOf(t, manager, "one"); row.Attachment != nil {
			t.Errorf("the one that stays: %+v", row)
		}
		if row := rowOf(t, manager, "late"); row.State != volumemanager.StatePending {
			t.Errorf("the new one: %+v", row)
		}
		mustTearDown(t, manager, two)
		want := []string{"SetUp uid-one", "TearDown uid-two", "UnmountDevice b"}
		if diff := cmpDiff(want, d.log()); diff != "" {
			t.Error(diff)
		}
		assertInUse(t, manager, "a")
		mustTearDown(t, manager, one, late)
		w.assertNoDevices()
	})
}

// A claim's volume is in use from the moment that the claim is bound.
func TestClaimIsInUseOnceItIsResolved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.withAttachableDisks()
		manager, stop := w.start()
		defer stop()
		pod := newPod("web", claimVolume("d", "data", false))
		declare(t, manager, pod)
		assertInUse(t, manager)
		claim, pv := boundPair("data", "pv-1")
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{GCEPersistentDisk: diskSource("a")}
		w.add(pv, claim)
		synctest.Wait()
		assertInUse(t, manager, "a")
		// A look-up that fails later says nothing about the wish.
		if err := w.store.Delete(t.Context(), volume.NewObjectRef("PersistentVolumeClaim", claim.Namespace, claim.Name), noPreconditions()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if row := rowOf(t, manager, "web"); row.State != volumemanager.StateFailed {
			t.Errorf("row = %+v", row)
		}
		assertInUse(t, manager, "a")
		manager.DeletePod(pod.UID)
		synctest.Wait()
		assertInUse(t, manager)
		if rows := manager.Explain(); len(rows) > 0 {
			t.Errorf("Explain = %+v", rows)
		}
	})
}

func TestDeviceThatDoesNotAppear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.setUpTimeout = 30 * time.Second
		d := w.withAttachableDisks()
		manager, stop := w.start()
		defer stop()
		n := &node{manager: manager}
		n.attach("a")
		remove := d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("WaitForAttach"), Release: make(chan struct{})})
		pod := diskPod("web", "a")
		declare(t, manager, pod)
		n.report()
		time.Sleep(30*time.Second + time.Millisecond)
		if row := rowOf(t, manager, "web"); row.State != volumemanager.StateFailed || !errors.Is(row.Err, context.DeadlineExceeded) || len(w.records()) != 0 {
			t.Errorf("row %+v, records %v", row, w.records())
		}
		if got := w.events.all(); len(got) != 1 || !strings.HasPrefix(got[0], `web Warning FailedMount MountVolume.WaitForAttach failed for volume "v-a" : `) {
			t.Errorf("events = %q", got)
		}
		remove()
		d.log()
		// Another path is a reason to try at once.
		began := time.Now()
		manager.SetVolumesAttached([]v1.AttachedVolume{{Name: unique("a"), DevicePath: "/dev/z"}})
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil || time.Since(began) > 0 {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if got := d.calls.Calls()[0].Device; got != "/dev/z" {
			t.Errorf("waited for %s", got)
		}
		mustTearDown(t, manager, pod)
		w.assertNoDevices()
	})
}

// A failure is repeated after its pause, not at every report.
func TestReportsDoNotShortenPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.withAttachableDisks()
		manager, stop := w.start()
		defer stop()
		n := &node{manager: manager}
		n.attach("a")
		d.calls.Inject(fault.Fault[diskCall]{Match: isDiskCall("SetUp"), Err: errors.New("no")})
		pod := diskPod("web", "a")
		declare(t, manager, pod)
		for range 20 {
			n.report()
			n.attach()
			synctest.Wait()
		}
		if n := d.count("SetUp uid-web"); n != 1 {
			t.Errorf("%d attempts without a pause", n)
		}
		mustTearDown(t, manager, pod)
		w.assertNoDevices()
	})
}

// What is attached, but not mounted once per node.
func TestAttachableWithoutDeviceMount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		d := w.withAttachableDisks()
		d.noDevices = true
		manager, stop := w.start()
		defer stop()
		n := &node{manager: manager}
		pod := diskPod("web", "a")
		declare(t, manager, pod)
		assertWaits(t, manager, volumemanager.AttachmentError{Volume: unique("a"), Node: "node1"})
		n.report()
		n.attach("a")
		synctest.Wait()
		mustSetUp(t, manager, pod)
		if diff := cmpDiff([]string{"WaitForAttach a", "SetUp uid-web", "SetUp uid-web"}, d.log()); diff != "" {
			t.Error(diff)
		}
		mustTearDown(t, manager, pod)
		if diff := cmpDiff([]string{"TearDown uid-web"}, d.log()); diff != "" {
			t.Error(diff)
		}
		assertInUse(t, manager)
		w.assertNoDevices()
	})
}
