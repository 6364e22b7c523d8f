package clusterhost_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/volumemanager"
)

// node is a node that reports, and whose disks a controller attaches.
type node struct {
	*world
	disks   *disks
	manager *volumemanager.Manager
	stop    func() // ends the manager and its reports
}

func (w *world) node() *node {
	w.t.Helper()
	w.add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	n := &node{world: w, disks: newDisks()}
	n.disks.mounting = n.checkMount
	n.start()
	synctest.Wait()
	return n
}

// start runs a manager that reports.
func (n *node) start() {
	n.t.Helper()
	n.disks = &disks{mounting: n.disks.mounting, mu: n.disks.mu, used: n.disks.used}
	source := n.source()
	manager, stop := n.run(volumemanager.Config{Objects: source, Plugins: []volume.VolumePlugin{n.disks}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- clusterhost.ReportVolumes(ctx, n.clientset, source, "node1", manager, clusterhost.ReportConfig{Logger: n.logger})
	}()
	n.manager = manager
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			n.t.Errorf("ReportVolumes: %v", err)
		}
		stop()
		source.Close()
	})
	n.t.Cleanup(n.stop)
}

// checkMount fails unless the API's status allows that a disk is mounted.
func (n *node) checkMount(disk string) {
	status := n.status()
	if !slices.Contains(status.VolumesInUse, unique(disk)) {
		n.t.Errorf("disk %s is mounted, but the status lists in use only %v", disk, status.VolumesInUse)
	}
	if !isAttached(status, disk) {
		n.t.Errorf("disk %s is mounted, but the status lists attached only %v", disk, status.VolumesAttached)
	}
}

func isAttached(status v1.NodeStatus, disk string) bool {
	return slices.ContainsFunc(status.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == unique(disk) })
}

func (n *node) status() v1.NodeStatus { return stored[*v1.Node](n.world, "Node", "", "node1").Status }

// change writes the status of the Node as somebody else does, past all faults.
func (n *node) change(f func(*v1.NodeStatus)) {
	n.t.Helper()
	for {
		changed := stored[*v1.Node](n.world, "Node", "", "node1").DeepCopy()
		f(&changed.Status)
		err := n.api.DirectStatus(context.Background(), changed)
		if errors.Is(err, objects.ErrConflict) {
			continue
		}
		if err != nil {
			n.t.Error(err)
		}
		return
	}
}

// attach returns when the node has seen it, as a report that meets the change would
// have to be repeated.
func (n *node) attach(disk string) {
	n.t.Helper()
	defer synctest.Wait()
	n.change(func(s *v1.NodeStatus) {
		s.VolumesAttached = append(s.VolumesAttached, v1.AttachedVolume{Name: unique(disk), DevicePath: "/dev/" + disk})
	})
}

// detach does what a controller may once a disk is not in use.
func (n *node) detach(disk string) {
	mayDetach := false
	n.change(func(s *v1.NodeStatus) {
		if mayDetach = !slices.Contains(s.VolumesInUse, unique(disk)); !mayDetach {
			return
		}
		s.VolumesAttached = slices.DeleteFunc(s.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == unique(disk) })
	})
	if mayDetach && n.disks.isUsed(disk) {
		n.t.Errorf("disk %s is detached, as the status does not list it in use, but it is mounted", disk)
	}
}

func (n *node) wantInUse(disks ...string) {
	n.t.Helper()
	synctest.Wait()
	var want []v1.UniqueVolumeName
	for _, d := range disks {
		want = append(want, unique(d))
	}
	if got := n.status().VolumesInUse; !slices.Equal(got, want) {
		n.t.Errorf("the status lists in use %v, want %v", got, want)
	}
}

func (n *node) isMounted(pod *v1.Pod) bool {
	ctx, cancel := context.WithCancel(n.t.Context())
	cancel() // only a look
	return n.manager.WaitForMounted(ctx, pod.UID) == nil
}

func (n *node) declare(pods ...*v1.Pod) {
	n.t.Helper()
	for _, pod := range pods {
		if err := n.manager.PutPod(pod); err != nil {
			n.t.Fatal(err)
		}
	}
	synctest.Wait()
}

func (n *node) tearDown(pods ...*v1.Pod) {
	n.t.Helper()
	for _, pod := range pods {
		if err := n.manager.TearDownPod(n.t.Context(), pod.UID); err != nil {
			n.t.Error(err)
		}
	}
}

func TestVolumesAreMountedWhenReportedAndAttached(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		n := w.node()
		one, two := diskPod("one", "a", "b"), diskPod("two", "b")
		n.declare(one, two)
		n.wantInUse("a", "b")
		time.Sleep(time.Hour)
		if n.isMounted(one) || n.isMounted(two) {
			t.Error("mounted before anything was attached")
		}
		began := time.Now()
		n.attach("b")
		if n.isMounted(one) || !n.isMounted(two) {
			t.Error("b is attached")
		}
		n.attach("a")
		if !n.isMounted(one) || time.Since(began) > 0 {
			t.Errorf("all is attached; after %s", time.Since(began))
		}
		n.detach("a")
		n.tearDown(two)
		n.wantInUse("a", "b")
		n.tearDown(one)
		n.wantInUse()
		n.detach("a")
		n.detach("b")
		n.api.Asked()
		time.Sleep(time.Hour)
		if n := w.asked("patch Node"); n > 0 {
			t.Errorf("%d reports of nothing new", n)
		}
	})
}

// What others have in the status stays, and theirs is only written where it differs.
func TestReportsLeaveTheRestAlone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		n := w.node()
		n.change(func(s *v1.NodeStatus) {
			s.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
			s.VolumesInUse = []v1.UniqueVolumeName{unique("stale")}
		})
		n.wantInUse()
		n.attach("other")
		pod := diskPod("web", "a")
		w.api.Asked()
		n.declare(pod)
		n.wantInUse("a")
		if n := w.asked("patch Node"); n != 1 {
			t.Errorf("%d reports of one change", n)
		}
		if s := n.status(); len(s.Conditions) != 1 || !isAttached(s, "other") {
			t.Errorf("the status is %+v", s)
		}
		n.attach("a")
		// Somebody who has a status writer of his own takes it away.
		n.change(func(s *v1.NodeStatus) { s.VolumesInUse = nil })
		n.wantInUse("a")
		if !n.isMounted(pod) {
			t.Error("it is not mounted any more")
		}
		n.tearDown(pod)
	})
}

// A report that meets a write of somebody else is repeated after a pause of some
// milliseconds, with what is wanted by then.
func TestAReportThatMeetsAnotherWrite(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		n := w.node()
		defer w.transport.Inject(apiFault{Match: on("patch", "Node"), Nth: 1, Hook: func() { n.ensureAttached("a") }})()
		w.api.Asked()
		n.change(func(s *v1.NodeStatus) { s.VolumesInUse = []v1.UniqueVolumeName{unique("stale")} })
		n.wantInUse("stale")
		pod := diskPod("web", "a")
		n.declare(pod) // during the pause
		n.wantInUse("stale")
		n.wantMountedWithin(pod, 15*time.Millisecond)
		n.wantInUse("a")
		if n := w.asked("patch Node"); n != 2 {
			t.Errorf("%d reports, want one that failed and one more", n)
		}
		n.tearDown(pod)
		n.wantInUse()
	})
}

func TestNothingIsReportedBeforeRecovery(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
		n := &node{world: w, disks: newDisks()}
		n.change(func(s *v1.NodeStatus) { s.VolumesInUse = []v1.UniqueVolumeName{unique("a")} })
		source := w.source()
		manager, err := volumemanager.New(volumemanager.Config{RootDir: w.root, NodeName: "node1", Objects: source, Plugins: []volume.VolumePlugin{n.disks}, Mounter: w.mounter})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		report := func() error {
			return clusterhost.ReportVolumes(ctx, w.clientset, source, "node1", manager, clusterhost.ReportConfig{})
		}
		ended := make(chan error, 2)
		go func() { ended <- report() }()
		time.Sleep(time.Hour)
		n.wantInUse("a")
		go func() { ended <- manager.Run(ctx) }()
		n.wantInUse()
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		ctx = t.Context()
		if err := report(); err == nil { // of a manager that has stopped
			t.Error("no error")
		}
	})
}

// A restart in the middle of an outage leaves everything as it is.
func TestReportsThroughAnOutageWithARestart(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		n := w.node()
		old, late := diskPod("old", "a"), diskPod("late", "b")
		n.attach("a")
		n.attach("b")
		n.declare(old)
		if !n.isMounted(old) {
			t.Fatal("not mounted")
		}
		w.transport.SetDown(clustertest.ErrUnreachable)
		w.api.DropWatches()
		n.declare(late)
		time.Sleep(5 * time.Minute)
		n.stop()
		n.start()
		if err := n.manager.WaitForRecovery(t.Context()); err != nil {
			t.Fatal(err)
		}
		n.declare(old, late)
		time.Sleep(5 * time.Minute)
		if !n.isMounted(old) || n.isMounted(late) {
			t.Errorf("during the outage: old %v, late %v", n.isMounted(old), n.isMounted(late))
		}
		n.wantInUse("a")
		w.transport.SetDown(nil)
		time.Sleep(45 * time.Second)
		n.wantInUse("a", "b")
		if !n.isMounted(late) {
			t.Error("not mounted after the outage")
		}
		n.tearDown(old, late)
		n.wantInUse()
	})
}

// Reports get through however often others write, without an endless row of tries.
func TestReportsInAConflictStorm(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		n := w.node()
		n.attach("a")
		// A write of somebody else comes between what the report was decided upon and the
		// report, 20 times.
		storm := 0
		defer w.transport.Inject(apiFault{Match: func(r clustertest.Request) bool { return on("patch", "Node")(r) && storm < 20 }, Hook: func() {
			storm++
			n.change(func(s *v1.NodeStatus) { s.NodeInfo.BootID = fmt.Sprint("heartbeat ", storm) })
		}})()
		pod := diskPod("web", "a")
		began := time.Now()
		w.api.Asked()
		if _, err := n.manager.SetUpPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		if took, reports := time.Since(began), w.asked("patch Node"); reports != 21 || took < 5*time.Second || took > 45*time.Second {
			t.Errorf("%d reports in %s", reports, took)
		}
		if got := n.status().NodeInfo.BootID; got != "heartbeat 20" {
			t.Errorf("a report has written over %q", got)
		}
		n.tearDown(pod)
	})
}

// A report that takes a volume off the list, and whose answer was lost, may still take
// effect when the volume is wanted again: that is ruled out before it is mounted.
func TestALostReportIsRuledOut(t *testing.T) {
	for name, lands := range map[string]time.Duration{"late": 50 * time.Second, "never": 0} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				n := w.node()
				n.attach("a")
				pod := diskPod("web", "a")
				n.declare(pod)
				late := &lateReports{node: n, land: lands}
				remove := w.transport.Inject(apiFault{Match: on("patch", "Node"), Nth: 1, Err: clustertest.ErrUnreachable, Hook: late.lose})
				defer remove()
				n.tearDown(pod)
				synctest.Wait()
				n.declare(pod) // before the report is repeated
				n.wantMountedWithin(pod, 10*time.Second)
				n.wantListed("a", 3*time.Minute)
				n.wantInUse("a")
				n.detach("a")
				n.tearDown(pod)
			})
		})
	}
}

// lateReports has it reported late that nothing is in use, with the version of now, as
// if an answer had been lost.
type lateReports struct {
	*node
	land time.Duration
}

func (l *lateReports) lose() {
	if l.land == 0 {
		return
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": stored[*v1.Node](l.world, "Node", "", "node1").ResourceVersion},
		"status": map[string]any{"volumesInUse": []string{}}})
	if err != nil {
		l.t.Error(err)
	}
	time.AfterFunc(l.land, func() {
		_, _ = l.clientset.CoreV1().Nodes().Patch(context.Background(), "node1", types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	})
}

func TestAMissingNodeIsWaitedFor(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		n := w.node()
		n.attach("a")
		pod := diskPod("web", "a")
		n.declare(pod)
		w.api.Direct(t, "DELETE", &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
		late := diskPod("late", "b")
		n.declare(late)
		time.Sleep(10 * time.Minute)
		w.add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
		time.Sleep(time.Minute)
		n.wantInUse("a", "b")
		n.attach("b")
		if !n.isMounted(late) || !n.disks.isUsed("a") {
			t.Error("not mounted")
		}
		n.attach("a")
		n.tearDown(pod, late)
		n.wantInUse()
	})
}
