package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nfsserver"
	"github.com/podvol/podvol/util/testenv/vmtest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/plugins/nfs"
	"github.com/podvol/podvol/volume/volumemanager"
)

const (
	// setUpLimit is for 200 mounts at once by emulation, which takes half a minute on
	// a machine with nothing else to do, and minutes on a busy one.
	setUpLimit = 6 * time.Minute
	// patienceLimit is what a set-up gets while a server is dead.
	patienceLimit = 8 * time.Second
	// manySlack is for 110 tear-downs at once.
	manySlack = 30 * time.Second
)

// TestNodeOfTwoHundredPods has 200 pods on the ten exports of five servers. One
// server dies under processes that read and write; meanwhile the agent is
// restarted, half of the pods are deleted, among them all that have one of the
// dead server's exports, and new ones come.
func TestNodeOfTwoHundredPods(t *testing.T) {
	packages := nfsserver.Unpack(t)
	vmtest.Run(t, func(t *testing.T) {
		n := newManyPods(t, packages)
		n.setUp(t)
		n.occupy(t)
		n.dead.Drop()
		defer n.dead.Pass()
		n.write(t)
		n.restart(t)
		n.deleteHalf(t)
		n.newPods(t)
		n.serverReturns(t)
	})
}

// manyPods is the node of that test.
type manyPods struct {
	*world
	servers []*nfsserver.Server
	dead    *nfsserver.Server
	manager *volumemanager.Manager
	stop    func()
	rungs   *rungs
	wanted  map[string]string // sources by mount point

	// Of the pods of the dead server's /a some stay, of its /b none.
	pods, stay, goLiving, goDeadA, goDeadB []*v1.Pod
	// late are those that want the dead server while it is silent.
	late []*v1.Pod

	// What uses the dead server: of pods of /a that stay; of one of /a that goes,
	// killed; of pods of /b, killed or not.
	staying, goingA, goingB []*process
	notKilled               *process // the last of goingB
}

func newManyPods(t *testing.T, packages nfsserver.Packages) *manyPods {
	t.Helper()
	n := &manyPods{rungs: &rungs{of: map[string]string{}}, wanted: map[string]string{}}
	for i := range 5 {
		s := nfsserver.Start(t, packages, nfsserver.Config{Name: fmt.Sprint("s", i), Exports: []nfsserver.Export{{Path: "/a"}, {Path: "/b"}}})
		for _, path := range []string{"/a", "/b"} {
			s.Put(path+"/who", s.Address()+":"+path)
		}
		n.servers = append(n.servers, s)
	}
	n.dead = n.servers[0]
	n.world = newNFSNode(t, host.Config{Logger: slog.New(n.rungs)})
	for i := range 200 {
		server, path := n.servers[i%5], []string{"/a", "/b"}[i/5%2]
		pod := newPod(fmt.Sprintf("pod-%03d", i), exportVolume("v", server.Address(), path))
		n.pods = append(n.pods, pod)
		switch {
		case server == n.dead && path == "/b":
			n.goDeadB = append(n.goDeadB, pod)
		case i%4 < 2:
			n.stay = append(n.stay, pod)
		case server == n.dead:
			n.goDeadA = append(n.goDeadA, pod)
		default:
			n.goLiving = append(n.goLiving, pod)
		}
		n.wanted[n.volumePath(pod)] = server.Address() + ":" + path
	}
	return n
}

// with has the next manager wait so long for a server.
func (n *manyPods) with(limit time.Duration) {
	n.setUpTimeout = limit
	n.plugins = func() []volume.VolumePlugin {
		return plugins.All(nfs.New(nfs.Config{
			ForceAfter: nodeForceAfter, LazyAfter: nodeLazyAfter,
			Breaker: nfs.BreakerConfig{Patience: limit, FirstPause: 2 * time.Second, LastPause: 5 * time.Second},
		}))
	}
}

func (n *manyPods) setUp(t *testing.T) {
	n.with(setUpLimit)
	n.manager, n.stop = n.start()
	// The first mount loads the kernel's modules. Of 200 that want them at once the
	// kernel refuses many (ENODEV): it runs 50 modprobes and waits five seconds.
	if _, err := n.manager.SetUpPod(t.Context(), n.pods[0]); err != nil {
		t.Fatal(err)
	}
	bounded(t, "200 pods set up", setUpLimit, func() error { return n.declare(t, setUpLimit) })
	if t.Failed() {
		t.FailNow() // the rest would say only that again, slowly
	}
	n.hasMounts(t, n.wanted)
	wantOwnExports(t, n.wanted)
}

func (n *manyPods) declare(t *testing.T, limit time.Duration) error {
	var errs []error
	for _, pod := range n.pods {
		errs = append(errs, n.manager.PutPod(pod))
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for _, pod := range n.pods {
		errs = append(errs, n.manager.WaitForMounted(ctx, pod.UID))
	}
	return errors.Join(errs...)
}

// occupy starts processes that have files of the server open which is to die.
func (n *manyPods) occupy(t *testing.T) {
	ofDeadA := slices.DeleteFunc(slices.Clone(n.stay), func(pod *v1.Pod) bool { return n.wanted[n.volumePath(pod)] != n.dead.Address()+":/a" })
	n.staying = []*process{startWriter(t, n.volumePath(ofDeadA[0]), "staying"), startReader(t, n.volumePath(ofDeadA[1]), "who")}
	n.goingA = []*process{startWriter(t, n.volumePath(n.goDeadA[0]), "going")}
	n.notKilled = startReader(t, n.volumePath(n.goDeadB[2]), "who")
	n.goingB = []*process{startWriter(t, n.volumePath(n.goDeadB[0]), "one"), startWriter(t, n.volumePath(n.goDeadB[1]), "two"), n.notKilled}
}

// write has those write that do, to the server that is silent, and kills those of
// the pods that go, but for one.
func (n *manyPods) write(t *testing.T) {
	writers := []*process{n.staying[0], n.goingA[0], n.goingB[0], n.goingB[1]}
	for _, p := range writers {
		p.write(t)
	}
	for i, p := range writers {
		p.hangs(t, fmt.Sprint("writer ", i))
	}
	for _, p := range writers[1:] {
		p.kill(t)
	}
}

func (n *manyPods) restart(t *testing.T) {
	n.stop()
	n.with(patienceLimit)
	bounded(t, "restart of the agent beside a dead server", manySlack, func() error {
		n.manager, n.stop = n.start()
		return nil
	})
	bounded(t, "200 pods declared to it again", manySlack, func() error { return n.declare(t, manySlack) })
}

// deleteHalf deletes 110 pods at once: those of living servers go, those of the
// dead one's /a without hurting the ones that stay there, those of its /b however
// they must.
func (n *manyPods) deleteHalf(t *testing.T) {
	going := slices.Concat(n.goLiving, n.goDeadA, n.goDeadB)
	for _, pod := range going {
		delete(n.wanted, n.volumePath(pod))
	}
	dead := make(chan map[string]error, 1)
	start := time.Now()
	go func() { dead <- n.tearDown(t, slices.Concat(n.goDeadA, n.goDeadB)) }()
	bounded(t, fmt.Sprintf("%d pods of living servers deleted", len(n.goLiving)), manySlack, func() error {
		return errors.Join(slices.Collect(maps.Values(n.tearDown(t, n.goLiving)))...)
	})
	failed := <-dead
	t.Logf("| %-45s | %5.2f s |", fmt.Sprintf("%d pods of the dead server deleted", len(n.goDeadA)+len(n.goDeadB)), time.Since(start).Seconds())
	if took := time.Since(start); took > nodeLazyAfter+manySlack {
		t.Errorf("it took %v", took)
	}
	n.hasMounts(t, n.wanted)
	living := maps.Clone(n.wanted)
	maps.DeleteFunc(living, func(_, source string) bool { return strings.HasPrefix(source, n.dead.Address()+":") })
	wantOwnExports(t, living)

	for _, export := range []struct {
		path string
		pods []*v1.Pod
	}{{"/a", n.goDeadA}, {"/b", n.goDeadB}} {
		rungs := map[string]int{}
		detached := 0
		for _, pod := range export.pods {
			rungs[n.rungs.at(n.volumePath(pod))]++
			if failed[pod.Name] != nil {
				detached++
			}
		}
		t.Logf("| %-45s | normal %d, force %d, lazy %d; %d detached |", "rungs of the dead server's "+export.path, rungs["normal"], rungs["force"], rungs["lazy"], detached)
	}
	n.wasDetached(t, n.goDeadA[0], failed)
	n.wasDetached(t, n.goDeadB[2], failed)
	for _, pod := range n.goDeadA {
		if rung := n.rungs.at(n.volumePath(pod)); rung == "force" {
			t.Errorf("%s was forced, though other pods have the same export", pod.Name)
		}
	}
	// Force hits all requests of a file system, so that another pod's may have ended
	// these processes, whose mounts the normal rung takes then. It hits no others.
	bounded(t, "end of the killed processes of its /b", nodeSlack, func() error { <-n.goingB[0].ended; <-n.goingB[1].ended; return nil })
	for _, p := range slices.Concat(n.staying, n.goingA) {
		if p.hasEnded() {
			t.Errorf("a process that uses /a was ended too: %v", p.err)
		}
	}
	if records, want := len(n.records()), len(n.stay)+len(failed); records != want {
		t.Errorf("%d records, want %d: of %d pods that stay and %d that were detached", records, want, len(n.stay), len(failed))
	}
}

// tearDown tears pods down at once and returns what was detached, by the pods'
// names, and whatever else failed.
func (n *manyPods) tearDown(t *testing.T, pods []*v1.Pod) map[string]error {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	errs := make([]error, len(pods))
	var wait sync.WaitGroup
	for i, pod := range pods {
		wait.Go(func() { errs[i] = n.manager.TearDownPod(ctx, pod.UID) })
	}
	wait.Wait()
	failed := map[string]error{}
	for i, err := range errs {
		if err != nil {
			failed[pods[i].Name] = err
		}
		if !isDetachedOnly(err) {
			t.Errorf("%s: %v", pods[i].Name, err)
		}
	}
	return failed
}

// wasDetached wants a pod's volume out of sight, and everybody told.
func (n *manyPods) wasDetached(t *testing.T, pod *v1.Pod, failed map[string]error) {
	t.Helper()
	row := statusOf(t, n.manager, pod.Name)
	if !errors.As(failed[pod.Name], new(*lazyunmount.Error)) || row.State != volumemanager.StateDetached || !errors.As(row.Err, new(*lazyunmount.Error)) || n.rungs.at(n.volumePath(pod)) != "lazy" {
		t.Errorf("%s was not detached: %v; its state is %s: %v; rung %q", pod.Name, failed[pod.Name], row.State, row.Err, n.rungs.at(n.volumePath(pod)))
	}
}

// newPods has pods come while the server is silent.
func (n *manyPods) newPods(t *testing.T) {
	bounded(t, "a new pod of a living server meanwhile", nodeSlack, func() error {
		if _, err := n.manager.SetUpPod(t.Context(), newPod("new", exportVolume("v", n.servers[1].Address(), "/a"))); err != nil {
			return err
		}
		return n.manager.TearDownPod(t.Context(), "uid-new")
	})
	for i := range 4 {
		n.late = append(n.late, newPod(fmt.Sprint("late-", i), exportVolume("v", n.dead.Address(), "/b")))
	}
	fails := func(pod *v1.Pod) error {
		_, err := n.manager.SetUpPod(t.Context(), pod)
		if !errors.Is(err, mount.ErrTimedOut) || !strings.Contains(err.Error(), n.dead.Address()) {
			return fmt.Errorf("set-up of %s = %w", pod.Name, err)
		}
		return nil
	}
	bounded(t, "failure of three new pods of the dead one", patienceLimit+nodeSlack, func() error {
		errs := make(chan error, 3)
		for _, pod := range n.late[:3] {
			go func() { errs <- fails(pod) }()
		}
		return errors.Join(<-errs, <-errs, <-errs)
	})
	last := n.late[3]
	bounded(t, "refusal of a fourth", patienceLimit+nodeSlack, func() error { return fails(last) })
	if row := statusOf(t, n.manager, last.Name); !errors.As(row.Err, new(*nfs.ServerDownError)) || row.Server.Answers || row.State != volumemanager.StateFailed {
		t.Errorf("%s is %s: %v; %+v", last.Name, row.State, row.Err, row.Server)
	}
}

func (n *manyPods) serverReturns(t *testing.T) {
	n.dead.Pass()
	bounded(t, "the server is back: data of the pods that stay", time.Minute, func() error { wantOwnExports(t, n.wanted); return nil })
	bounded(t, "new pods of it mounted", time.Minute, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var errs []error
		for _, pod := range n.late {
			errs = append(errs, n.manager.WaitForMounted(ctx, pod.UID))
			n.wanted[n.volumePath(pod)] = n.dead.Address() + ":/b"
		}
		return errors.Join(errs...)
	})
	n.hasMounts(t, n.wanted)
	wantOwnExports(t, n.wanted)
	bounded(t, "end of the write of a pod that stays", time.Minute, func() error { <-n.staying[0].ended; return n.staying[0].err })
	if info, err := os.Stat(n.dead.Path("/a/staying")); err != nil || info.Size() != processWrites {
		t.Errorf("the server has %v, %v", info, err)
	}
	for _, p := range []*process{n.staying[1], n.notKilled} {
		if p.hasEnded() {
			t.Errorf("a reader has ended: %v", p.err)
		}
		p.kill(t)
	}
	bounded(t, "all other pods deleted", 90*time.Second, func() error {
		rest := slices.Concat(n.stay, n.late, n.goDeadA, n.goDeadB)
		gone := make(chan error, len(rest))
		for _, pod := range rest {
			go func() { gone <- tearDownAll(t, n.manager, pod) }()
		}
		var errs []error
		for range rest {
			errs = append(errs, <-gone)
		}
		return errors.Join(errs...)
	})
	n.hasMounts(t, map[string]string{})
	bounded(t, "end of the calls that hung", 3*time.Minute, hungCallsEnded)
	n.assertClean()
}

// rungs is a log that keeps by which rung what was unmounted.
type rungs struct {
	mu sync.Mutex
	of map[string]string // by target
}

func (r *rungs) at(target string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.of[target]
}

// Handle implements [slog.Handler].
func (r *rungs) Handle(_ context.Context, record slog.Record) error {
	said := map[string]slog.Value{}
	record.Attrs(func(a slog.Attr) bool {
		said[a.Key] = a.Value
		return true
	})
	if record.Message == "unmount" && said["error"].Any() == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.of[said["target"].String()] = said["rung"].String()
	}
	return nil
}

func (r *rungs) Enabled(context.Context, slog.Level) bool { return true }
func (r *rungs) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r *rungs) WithGroup(string) slog.Handler            { return r }
