package volumemanager_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/volumemanager"
)

// soakVar is how long [TestSoak] takes, such as 2m or 60m. Without it the test takes as
// few pods as show that it works, as fast as they go.
const soakVar = "PODVOL_SOAK"

const (
	soakPods     = 40                     // that are mounted at a time
	soakWindow   = 50                     // pods that come and go between samples
	soakShort    = 20                     // the same without a length
	soakInterval = 100 * time.Millisecond // between two pods
	soakLeast    = 9                      // samples
	soakRate     = 8                      // pods a second at least
)

// TestSoak has pods come and go on this kernel, ten a second with mixed volumes, while a
// ConfigMap changes that all of them use, and while a server is silent that two pods want:
// one has its file system, another tries again and again to bind a directory of it. A second
// server falls silent in each window, and its pod goes. What the process holds does not grow:
//
//	PODVOL_SOAK=60m go test ./volume/volumemanager -run TestSoak -v -timeout 90m
//
// It is sampled between windows, when the same number of pods is mounted and none is on its
// way. The middle of the first third of the samples is compared with that of the last: single
// ones may be anything on a busy machine, and time does not count.
func TestSoak(t *testing.T) {
	length := time.Duration(0)
	if text := os.Getenv(soakVar); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", soakVar, err)
		}
	}
	mode := nstest.Root
	if os.Geteuid() != 0 {
		mode = nstest.User
	}
	nstest.RunAs(t, []nstest.Mode{mode}, func(t *testing.T) {
		s := newSoak(t)
		if s.window = soakShort; length > 0 {
			s.window = soakWindow
		}
		s.hang()
		started, pace := time.Now(), time.NewTicker(soakInterval)
		defer pace.Stop()
		for time.Since(started) < length || len(s.samples) < soakLeast {
			for range s.window {
				if length > 0 {
					<-pace.C // it is load, not a wait for anything
				}
				s.step()
			}
			s.update()
			s.sample()
		}
		s.rate(length, time.Since(started))
		s.judge()
		s.end()
	})
}

// rate says how many pods a second have come. On a machine that others use a step may take longer
// than its interval, so it is held against its limit only where figures are.
func (s *soak) rate(asked, took time.Duration) {
	s.t.Helper()
	reached := float64(s.n) / took.Seconds()
	s.t.Logf("%.1f pods a second", reached)
	if slack, asserted := figures.Slack(s.t); asked > 0 && asserted && reached*slack < soakRate {
		s.t.Errorf("%.1f pods a second have come, not %d", reached, soakRate)
	}
}

// soak is a node under churn.
type soak struct {
	t       *testing.T
	w       *world
	fuse    *fusePlugin
	manager *volumemanager.Manager
	woken   chan struct{} // after a set-up
	host    string        // a directory of the machine
	window  int           // pods between samples
	n       int           // pods so far
	live    []soakPod
	updates int
	samples []soakSample
}

type soakPod struct {
	pod      *v1.Pod
	settings string // the path of the ConfigMap's volume
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	w := newWorld(t)
	s := &soak{t: t, w: w, woken: make(chan struct{}, 1), host: testtool.MkdirAll(t, t.TempDir(), "host")}
	s.fuse = w.withFUSE(t, mount.UnmountOptions{ForceAfter: 100 * time.Millisecond, LazyAfter: time.Minute})
	s.fuse.patience = 20 * time.Millisecond
	claim, pv := boundPair("data", "data")
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: testtool.MkdirAll(t, t.TempDir(), "data")}}
	w.add(claim, pv, s.configMap(), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "password"}, Data: map[string][]byte{"password": []byte("x")}})
	c := w.config()
	c.Events = nil // the test would keep them all
	manager, err := volumemanager.New(c)
	if err != nil {
		t.Fatal(err)
	}
	s.manager = manager
	w.run(manager)
	t.Cleanup(manager.Subscribe(func(v volumemanager.VolumeStatus) {
		if v.Ended == "set-up" {
			select {
			case s.woken <- struct{}{}:
			default:
			}
		}
	}))
	return s
}

func (s *soak) configMap() *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings"}, Data: map[string]string{"version": fmt.Sprint(s.updates), "other": "same"}}
}

func (s *soak) setUp(pod *v1.Pod) *volumemanager.PodVolumes {
	s.t.Helper()
	volumes, err := s.manager.SetUpPod(s.t.Context(), pod)
	if err != nil {
		s.t.Fatalf("set-up of %s: %v", pod.Name, err)
	}
	return volumes
}

func (s *soak) tearDown(pod *v1.Pod) {
	s.t.Helper()
	if err := s.manager.TearDownPod(s.t.Context(), pod.UID); err != nil {
		s.t.Fatalf("teardown of %s: %v", pod.Name, err)
	}
}

// hang sets up the pod of the server that is silent from then on, and declares the pod that
// wants a directory of it, in vain.
func (s *soak) hang() {
	s.t.Helper()
	hung := newPod("hung", fuseVolume("v", ""))
	path, _ := s.setUp(hung).Path("v")
	startStuck(s.t, s.fuse.server(hung), path)
	if err := s.manager.PutPod(newPod("waits", fuseVolume("v", filepath.Join(path, "directory")))); err != nil {
		s.t.Fatal(err)
	}
}

// step has one pod come and the oldest go.
func (s *soak) step() {
	s.t.Helper()
	s.n++
	pod := newPod(fmt.Sprint("p", s.n), emptyDirVolume("scratch", v1.StorageMediumDefault), emptyDirVolume("memory", v1.StorageMediumMemory),
		v1.Volume{Name: "settings", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}}},
		v1.Volume{Name: "password", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "password"}}},
		v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: s.host}}},
		v1.Volume{Name: "self", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
			{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}}},
		v1.Volume{Name: "projected", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "settings"}}},
			{Secret: &v1.SecretProjection{LocalObjectReference: v1.LocalObjectReference{Name: "password"}}}}}}},
		claimVolume("claim", "data", false))
	settings, _ := s.setUp(pod).Path("settings")
	s.live = append(s.live, soakPod{pod, settings})
	if len(s.live) > soakPods {
		s.tearDown(s.live[0].pod)
		s.live = slices.Delete(s.live, 0, 1)
	}
	if s.n%s.window == s.window/2 {
		s.falls()
	}
	if s.n%10 == 0 {
		s.change()
	}
}

// falls has a server fall silent while something asks it, and its pod go.
func (s *soak) falls() {
	s.t.Helper()
	pod := newPod(fmt.Sprint("falls", s.n), fuseVolume("v", ""))
	path, _ := s.setUp(pod).Path("v")
	server := s.fuse.server(pod)
	server.FallSilent()
	asking, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		close(asking)
		os.Lstat(path) // it fails once the server's mount is forced off
	}()
	<-asking
	<-server.Asked()
	s.tearDown(pod)
	server.Close()
	<-done
	s.fuse.servers.Delete(pod.UID)
}

// change changes the ConfigMap.
func (s *soak) change() {
	s.t.Helper()
	s.updates++
	if _, err := s.w.store.Update(context.Background(), s.configMap()); err != nil {
		s.t.Fatal(err)
	}
}

// update changes the ConfigMap and returns once all pods have it.
func (s *soak) update() {
	s.t.Helper()
	s.change()
	has := func(p soakPod) bool {
		text, err := os.ReadFile(filepath.Join(p.settings, "version"))
		return err == nil && string(text) == fmt.Sprint(s.updates)
	}
	late := time.After(2 * time.Minute)
	for slices.ContainsFunc(s.live, func(p soakPod) bool { return !has(p) }) {
		select {
		case <-s.woken:
		case <-late:
			s.t.Fatalf("after two minutes not all pods have update %d", s.updates)
		}
	}
}

// soakSample is what the process holds.
type soakSample struct {
	heap, other, goroutines, threads, descriptors, mounts, journal, records, rows int
}

func (s *soak) sample() {
	s.t.Helper()
	info, err := os.Stat(s.w.recordsPath())
	if err != nil {
		s.t.Fatal(err)
	}
	mounts, err := table.Kernel().All()
	if err != nil {
		s.t.Fatal(err)
	}
	rows := len(s.manager.Explain())
	x := soakSample{goroutines: runtime.NumGoroutine(), threads: threads(s.t), descriptors: testtool.OpenFiles(s.t),
		mounts: len(mounts), journal: int(info.Size()), records: len(s.w.records()), rows: rows}
	x.heap, x.other = memory(s.t)
	s.samples = append(s.samples, x)
	s.t.Logf("%d pods, %d updates: %+v", s.n, s.updates, x)
}

// memory is how many bytes of the heap are in use, and how much memory the process has beside what
// the heap has taken.
func memory(t *testing.T) (inUse, other int) {
	t.Helper()
	inUse = int(heap())
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	var kibibytes int
	if _, err := fmt.Sscan(after, &kibibytes); err != nil {
		t.Fatal(err)
	}
	return inUse, kibibytes<<10 - int(stats.HeapSys-stats.HeapReleased)
}

// judge compares what there was early with what there was late.
func (s *soak) judge() {
	s.t.Helper()
	third := len(s.samples) / 3
	warm := s.samples[1:] // the first has the runtime's own growth
	middle := func(of func(soakSample) int, samples []soakSample) int {
		var all []int
		for _, x := range samples {
			all = append(all, of(x))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	for _, c := range []struct {
		what  string
		of    func(soakSample) int
		slack int
	}{
		// A quarter of a kibibyte for each of the 780 pods between, in the shortest run that
		// counts, of two minutes; 40 KiB are usual.
		{"bytes of heap", func(x soakSample) int { return x.heap }, 192 << 10},
		{"goroutines", func(x soakSample) int { return x.goroutines }, 5},
		// The runtime starts some when the machine is busy, and keeps them.
		{"threads", func(x soakSample) int { return x.threads }, 12 + runtime.GOMAXPROCS(0)},
		{"descriptors", func(x soakSample) int { return x.descriptors }, 3},
		// It grows by 4 MiB until it is written anew: a sample is anything in between. The
		// records of a pod cost 10 KiB, so that it would be 8 MiB more in two minutes.
		{"bytes of journal", func(x soakSample) int { return x.journal }, 4 << 20},
		// Stacks, the runtime's own and what was read of the program: 1.5 MiB in two minutes.
		{"bytes of other memory", func(x soakSample) int { return x.other }, 4 << 20},
		{"mounts", func(x soakSample) int { return x.mounts }, 0},
		{"records", func(x soakSample) int { return x.records }, 0},
		{"rows of Explain", func(x soakSample) int { return x.rows }, 0},
	} {
		early, late := middle(c.of, warm[:third]), middle(c.of, warm[len(warm)-third:])
		s.t.Logf("%s: %d early, %d late", c.what, early, late)
		switch short := s.window == soakShort; {
		case short && c.what == "bytes of heap":
			c.slack *= 4 // it begins sooner
		case short && c.what == "bytes of other memory":
			continue // may be the race detector's
		}
		if late > early+c.slack {
			s.t.Errorf("%s have grown from %d to %d over %d pods", c.what, early, late, s.n)
		}
	}
}

// end tears everything down.
func (s *soak) end() {
	s.t.Helper()
	for _, name := range []string{"waits", "hung"} {
		s.tearDown(newPod(name))
	}
	for _, p := range s.live {
		s.tearDown(p.pod)
	}
	s.w.assertClean()
}
