package volumemanager_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/volumemanager"
)

// The model test runs random histories against a manager on virtual time, and
// checks after each step what must always hold, and at the end that the node
// has come to what is wanted. A history that fails is shrunk and printed;
// -rapid.failfile replays it. More of them: -rapid.checks 100000, longer ones:
// -model.steps 200.
var modelSteps = flag.Int("model.steps", 40, "the length of the model test's histories")

// step is one step of a history.
type step struct {
	Do  action
	Pod int           // which pod, config map or claim
	For time.Duration // how long
}

func (s step) String() string { return fmt.Sprintf("%s(%d, %v)", s.Do, s.Pod, s.For) }

type action string

const (
	nothing     action = "nothing" // what others are shrunk to
	putPod      action = "put the pod"
	deletePod   action = "delete the pod"
	tearDownPod action = "tear the pod down"
	endPod      action = "end the pod's containers"
	complete    action = "pods are complete"
	setConfig   action = "change the config map"
	loseConfig  action = "delete the config map"
	loseClaim   action = "delete the claim"
	makeClaim   action = "create the claim"
	failMounts  action = "mounts fail before their effect"
	spoilMounts action = "mounts fail after their effect"
	failUnmount action = "unmounts fail"
	hangMounts  action = "mounts hang"
	endFaults   action = "faults end"
	pass        action = "time passes"
	restart     action = "the manager restarts"
	askMounts   action = "a container's mounts are asked for"
	earlyWord   action = "the manager restarts, and hears of a pod before it is declared"
)

const modelPods = 7

func history() *rapid.Generator[[]step] {
	actions := []action{nothing, putPod, putPod, putPod, deletePod, tearDownPod, endPod, complete, setConfig, loseConfig, loseClaim, makeClaim,
		failMounts, spoilMounts, failUnmount, hangMounts, endFaults, pass, pass, restart, earlyWord, askMounts, askMounts}
	actions = append(actions, deviceActions()...)
	one := rapid.Custom(func(t *rapid.T) step {
		return step{
			Do:  rapid.SampledFrom(actions).Draw(t, "action"),
			Pod: rapid.IntRange(0, modelPods-1).Draw(t, "pod"),
			For: rapid.SampledFrom([]time.Duration{0, time.Millisecond, 600 * time.Millisecond, 10 * time.Second, 5 * time.Minute}).Draw(t, "for"),
		}
	})
	return rapid.Map(rapid.SliceOfN(one, *modelSteps/4, *modelSteps), func(steps []step) []step {
		return slices.DeleteFunc(slices.Clone(steps), func(s step) bool { return s.Do == nothing })
	})
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := history().Draw(rt, "history")
		var failure error
		synctest.Test(t, func(t *testing.T) { failure = newModel(t).run(steps) })
		if failure != nil {
			rt.Fatalf("%v", failure)
		}
	})
}

// model is what the world should look like, beside the world.
type model struct {
	*world
	manager *volumemanager.Manager
	stop    func()
	role    *runningPods
	faults  []func()
	served  string

	disk       *disk
	complaints *complaints
	controller controller

	wanted  [modelPods]bool
	content string // of the config map; empty: there is none
	claim   bool
}

// runningPods is the containers role: a pod runs from its declaration on until
// its end.
type runningPods struct {
	mu   sync.Mutex
	runs map[types.UID]bool
	lost bool // it does not know
	f    func(types.UID)
}

func (r *runningPods) ContainersGone(_ context.Context, podUID types.UID) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost {
		return false, errors.New("the runtime does not answer")
	}
	return !r.runs[podUID], nil
}

func (r *runningPods) lose(lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost = lost
}

func (r *runningPods) WatchContainers(f func(types.UID)) (stop func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.f = f
	return func() {}
}

func (r *runningPods) set(podUID types.UID, runs bool) {
	r.mu.Lock()
	r.runs[podUID] = runs
	f := r.f
	r.mu.Unlock()
	if !runs && f != nil {
		f(podUID)
	}
}

func (r *runningPods) is(podUID types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs[podUID]
}

func newModel(t *testing.T) *model {
	m := &model{world: newWorld(t), role: &runningPods{runs: map[types.UID]bool{}}, served: t.TempDir()}
	if err := os.WriteFile(filepath.Join(m.served, "data"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, server := range []string{"10.0.0.1", "10.20.172.211"} {
		m.fake.Serve(server+":/nfs", m.served)
	}
	m.withModelDisks()
	m.containers = m.role
	m.setUpTimeout = time.Minute
	m.setConfig("0")
	m.makeClaim()
	m.manager, m.stop = m.start()
	return m
}

func modelPod(i int) *v1.Pod {
	name := fmt.Sprintf("p%d", i)
	switch i {
	case 0:
		return mounting(newPod(name, nfsVolume("share", "10.0.0.1"), emptyDirVolume("scratch", "")),
			part("share", "logs/"+name), part("scratch", "x"), part("scratch", "y"))
	case 1:
		return mounting(newPod(name, configMapVolume("settings", "settings"), emptyDirVolume("memory", v1.StorageMediumMemory)),
			part("settings", "content"), part("memory", "x"))
	case 2:
		return mounting(newPod(name, claimVolume("one", "nfs-211", false), claimVolume("two", "nfs-211", false)), part("one", "x"), part("two", "x"))
	case 4:
		return mounting(diskPod(name, localDisk, netDisk), part("v-"+localDisk, "x"), part("v-"+netDisk, "y"))
	case 5:
		return diskPod(name, localDisk)
	case 6:
		return withVolumes(diskPod(name, netDisk), nfsVolume("share", "10.0.0.1"))
	}
	return mounting(newPod(name, nfsVolume("share", "10.0.0.1"), configMapVolume("settings", "settings")), part("settings", "content"), part("share", "logs/"+name))
}

func part(volume, subPath string) v1.VolumeMount {
	return v1.VolumeMount{Name: volume, MountPath: "/" + volume + "-" + strings.ReplaceAll(subPath, "/", "-"), SubPath: subPath}
}

func podUID(i int) types.UID { return modelPod(i).UID }

func (m *model) run(steps []step) error {
	defer func() { m.stop() }()
	for i, s := range steps {
		m.do(s)
		synctest.Wait()
		m.cluster()
		if err := m.check(); err != nil {
			return fmt.Errorf("after step %d of %v: %w", i, steps, err)
		}
	}
	if err := m.converge(); err != nil {
		return fmt.Errorf("at the end of %v: %w", steps, err)
	}
	return nil
}

func (m *model) do(s step) {
	switch s.Do {
	case putPod:
		m.put(s.Pod)
	case deletePod:
		m.wanted[s.Pod] = false
		m.manager.DeletePod(podUID(s.Pod))
	case tearDownPod:
		m.wanted[s.Pod] = false
		m.role.set(podUID(s.Pod), false)
		ctx, cancel := context.WithTimeout(context.Background(), s.For+time.Millisecond)
		defer cancel()
		_ = m.manager.TearDownPod(ctx, podUID(s.Pod))
	case endPod:
		if !m.wanted[s.Pod] {
			m.role.set(podUID(s.Pod), false)
		}
	case complete:
		m.manager.PodsComplete()
	case setConfig:
		m.setConfig(s.For.String())
	case loseConfig:
		m.lose(volume.NewObjectRef("ConfigMap", "ops-test", "settings"))
		m.content = ""
	case loseClaim:
		m.lose(volume.NewObjectRef("PersistentVolumeClaim", "ops-test", "nfs-211"))
		m.claim = false
	case makeClaim:
		m.makeClaim()
	case pass:
		time.Sleep(s.For)
	case restart:
		m.restart(nil)
	case earlyWord:
		m.restart(func() { m.hearEarly(s.Pod) })
	case askMounts:
		m.askMounts(s)
	default:
		if !m.doDevices(s) {
			m.fault(s)
		}
	}
}

// askMounts: what a container is shown is mounted.
func (m *model) askMounts(s step) {
	ctx, cancel := context.WithTimeout(context.Background(), s.For+time.Millisecond)
	defer cancel()
	mounts, _, err := m.manager.ContainerMounts(ctx, podUID(s.Pod), "c", containermounts.Options{})
	if err == nil && len(mounts) != len(modelPod(s.Pod).Spec.Containers[0].VolumeMounts) {
		m.t.Errorf("pod %d is shown %+v", s.Pod, mounts)
	}
	for _, shown := range mounts {
		if _, mounted, err := m.fake.Table().At(shown.Source); !mounted || err != nil {
			m.t.Errorf("%s is shown, and is not mounted: %v", shown.Source, err)
		}
	}
}

func (m *model) put(i int) {
	m.role.set(podUID(i), true)
	m.wanted[i] = true
	if err := m.manager.PutPod(modelPod(i)); err != nil {
		m.t.Error(err)
	}
}

// hearEarly has the role speak about a pod of the last run that nobody has
// announced yet: nothing of it may go.
func (m *model) hearEarly(i int) {
	before := m.records()
	m.role.mu.Lock()
	f, runs := m.role.f, m.role.runs[podUID(i)]
	m.role.runs[podUID(i)] = false
	m.role.mu.Unlock()
	f(podUID(i))
	synctest.Wait()
	if after := m.records(); len(after) != len(before) {
		m.t.Errorf("before pods were complete, of %v only %v were left", before, after)
	}
	m.role.mu.Lock()
	m.role.runs[podUID(i)] = runs
	m.role.mu.Unlock()
}

// restart restarts the manager; early is what happens before a pod is declared.
func (m *model) restart(early func()) {
	m.stop()
	m.manager, m.stop = m.start()
	if early != nil {
		early()
	}
	m.tellAttached() // as far as the node's status says
	for i, wanted := range m.wanted {
		if wanted {
			m.put(i)
		}
	}
}

func (m *model) setConfig(content string) {
	object := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings"}, Data: map[string]string{"content": content}}
	store := m.store.Update
	if m.content == "" {
		store = m.store.Create
	}
	if _, err := store(context.Background(), object); err != nil {
		m.t.Error(err)
	}
	m.content = content
}

func (m *model) makeClaim() {
	if m.claim {
		return
	}
	claim, pv := boundPair("nfs-211", "nfs211")
	m.add(claim.DeepCopy())
	if _, err := m.store.Get(context.Background(), volume.NewObjectRef("PersistentVolume", "", "nfs211")); err != nil {
		m.add(pv)
	}
	m.claim = true
}

func (m *model) lose(ref volume.ObjectRef) {
	if err := m.store.Delete(context.Background(), ref, noPreconditions()); err != nil && !errors.Is(err, volume.ErrNotFound) {
		m.t.Error(err)
	}
}

func (m *model) fault(s step) {
	of := podUID(s.Pod)
	f := fakemount.Fault{Err: errors.New("injected")}
	f.Match = func(c fakemount.Call) bool { return isMount(c) && strings.Contains(c.Target, string(of)) }
	switch s.Do {
	case spoilMounts:
		f.After = true
	case failUnmount:
		f.Match = func(c fakemount.Call) bool { return isUnmount(c) && strings.Contains(c.Target, string(of)) }
	case hangMounts:
		release := make(chan struct{})
		f.Err, f.Release = nil, release
		m.faults = append(m.faults, m.fake.Inject(f), sync.OnceFunc(func() { close(release) }))
		return
	case endFaults:
		m.endFaults()
		return
	}
	m.faults = append(m.faults, m.fake.Inject(f))
}

func (m *model) endFaults() {
	for _, end := range m.faults {
		end()
	}
	m.faults = nil
}
