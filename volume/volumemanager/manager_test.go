package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins"
	"github.com/podvol/podvol/volume/volumemanager"
)

func TestMain(m *testing.M) {
	testtool.Shorten()
	noleak.Main(m)
}

func TestClaimIsMountedFromItsPersistentVolume(t *testing.T) {
	w := newWorld(t)
	claim, pv := boundPair("nfs-211", "nfs211")
	w.add(claim, pv)
	manager, _ := w.start()
	pod := newPod("web", claimVolume("vol1", "nfs-211", false))
	recordsAtMount := -1
	w.fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool {
		if c.Op == mount.OpMount {
			recordsAtMount = len(w.records())
		}
		return false
	}})
	before := pod.DeepCopy()
	volumes, err := manager.SetUpPod(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(w.root, "pods/uid-web/volumes/kubernetes.io~nfs/nfs211")
	if path, ok := volumes.Path("vol1"); !ok || path != want {
		t.Errorf("mounted at %q, %v; want %q", path, ok, want)
	}
	if recordsAtMount != 1 {
		t.Errorf("%d records existed when the mounter was called, want 1", recordsAtMount)
	}
	calls := w.fake.Calls()
	if len(calls) != 1 || calls[0].String() != "mount -t nfs 10.20.172.211:/nfs "+want {
		t.Errorf("calls = %v", calls)
	}
	if diff := cmpDiff(before, pod); diff != "" {
		t.Errorf("SetUpPod changed the pod:\n%s", diff)
	}
	if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	w.assertClean()
	if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
		t.Errorf("a second tear-down: %v", err)
	}
	if len(manager.Explain()) != 0 {
		t.Errorf("Explain still knows %v", manager.Explain())
	}
}

func TestFailuresAreCollectedAndRepaired(t *testing.T) {
	// Half a second after the failure comes the next attempt, however slow the disk is.
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, _ := w.start()
		refused := errors.New("connection refused")
		remove := w.fake.Inject(fakemount.Fault{Err: refused, Match: func(c fakemount.Call) bool { return strings.HasPrefix(c.Source, "10.0.0.2:") }})
		pod := newPod("web", nfsVolume("good", "10.0.0.1"), nfsVolume("bad", "10.0.0.2"), emptyDirVolume("scratch", ""))
		volumes, err := manager.SetUpPod(t.Context(), pod)
		var podErr *volumemanager.PodError
		if !errors.As(err, &podErr) || len(podErr.Errs) != 1 || !errors.Is(err, refused) {
			t.Fatalf("err = %v, want a PodError with one failure", err)
		}
		var volumeErr *volume.Error
		if !errors.As(err, &volumeErr) || volumeErr.Volume != "bad" || volumeErr.Pod.Name != "web" {
			t.Errorf("the error does not name volume and pod: %v", err)
		}
		states := map[string]volumemanager.VolumeState{}
		for _, v := range volumes.Volumes {
			states[v.Volume] = v.State
		}
		if diff := cmpDiff(map[string]volumemanager.VolumeState{"good": "mounted", "bad": "failed", "scratch": "mounted"}, states); diff != "" {
			t.Error(diff)
		}
		if got := w.events.all(); len(got) != 1 || !strings.HasPrefix(got[0], `web Warning FailedMount MountVolume.SetUp failed for volume "bad" : `) {
			t.Errorf("events = %q", got)
		}
		if n := len(w.records()); n != 2 {
			t.Errorf("%d records, want those of the two mounted volumes", n)
		}
		remove()
		if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
			t.Fatalf("the second call does not repair: %v", err)
		}
		if n := len(w.fake.Calls()); n != 3 {
			t.Errorf("%d calls to the mounter, want 3: the mounted share must not be mounted again", n)
		}
		if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		w.assertClean()
	})
}

func TestFailedTearDownKeepsItsRecordAndIsRepeated(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := newPod("web", emptyDirVolume("a", v1.StorageMediumMemory), nfsVolume("b", "10.0.0.2"))
	if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	busy := errors.New("target is busy")
	remove := w.fake.Inject(fakemount.Fault{Err: busy, Match: func(c fakemount.Call) bool {
		return c.Op == mount.OpUnmount && strings.HasSuffix(c.Target, "/a")
	}})
	err := manager.TearDownPod(t.Context(), pod.UID)
	if !errors.Is(err, busy) || !strings.Contains(err.Error(), `"a"`) || !strings.Contains(err.Error(), "ops-test/web") {
		t.Fatalf("err = %v", err)
	}
	if got := manager.Explain(); len(got) != 1 || got[0].Volume != "a" || got[0].State != volumemanager.StateFailed || len(w.records()) != 1 {
		t.Errorf("Explain = %v, records %v; want just the failed volume", got, w.records())
	}
	remove()
	if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	w.assertClean()
}

func TestTwoPodsShareAnExport(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	one, two := newPod("one", nfsVolume("v", "10.0.0.1")), newPod("two", nfsVolume("v", "10.0.0.1"))
	for _, pod := range []*v1.Pod{one, two} {
		if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	if err := manager.TearDownPod(t.Context(), one.UID); err != nil {
		t.Fatal(err)
	}
	entries, err := w.fake.Table().BySource("10.0.0.1:/nfs")
	if err != nil || len(entries) != 1 || !strings.Contains(entries[0].Target, "uid-two") {
		t.Errorf("mounted: %v, %v; want the other pod's share alone", entries, err)
	}
}

func TestHungVolumeDelaysNoOther(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	release := make(chan struct{})
	w.fake.Inject(fakemount.Fault{Release: release, Match: func(c fakemount.Call) bool { return strings.HasPrefix(c.Source, "10.0.0.2:") }})
	defer close(release)
	pod := newPod("web", nfsVolume("hung", "10.0.0.2"), nfsVolume("good", "10.0.0.1"))
	mounted := make(chan string, 8)
	stop := manager.Subscribe(func(v volumemanager.VolumeStatus) {
		if v.State == volumemanager.StateMounted {
			mounted <- v.Volume
		}
	})
	defer stop()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan *volumemanager.PodVolumes)
	go func() {
		volumes, _ := manager.SetUpPod(ctx, pod)
		result <- volumes
	}()
	if got := <-mounted; got != "good" {
		t.Fatalf("%s was mounted", got)
	}
	if err := manager.TearDownPod(t.Context(), "uid-other"); err != nil {
		t.Errorf("another pod is delayed: %v", err)
	}
	cancel()
	volumes := <-result
	if volumes.Volumes[0].State == volumemanager.StateMounted || volumes.Volumes[0].Err == nil || volumes.Volumes[1].State != volumemanager.StateMounted {
		t.Errorf("states after the wait: %+v", volumes.Volumes)
	}
}

// stubborn is a plugin whose set-up ignores its context.
type stubborn struct {
	volume.VolumePlugin
	release chan struct{}
}

func (p stubborn) GetPluginName() string { return "example.com/stubborn" }
func (p stubborn) CanSupport(s *volume.Spec) bool {
	return s != nil && s.Volume != nil && s.Volume.GitRepo != nil
}
func (p stubborn) GetVolumeName(*volume.Spec) (string, error) { return "stubborn", nil }
func (p stubborn) Init(volume.VolumeHost) error               { return nil }
func (p stubborn) NewMounter(*volume.Spec, *v1.Pod) (volume.Mounter, error) {
	return stubbornVolume{release: p.release}, nil
}
func (p stubborn) NewUnmounter(string, types.UID) (volume.Unmounter, error) {
	return stubbornVolume{}, nil
}

type stubbornVolume struct {
	volume.NoMetrics
	release chan struct{}
}

func (stubbornVolume) GetPath() string                  { return "/nowhere" }
func (stubbornVolume) GetAttributes() volume.Attributes { return volume.Attributes{} }
func (v stubbornVolume) SetUp(context.Context, volume.MounterArgs) error {
	<-v.release
	return nil
}
func (v stubbornVolume) SetUpAt(ctx context.Context, _ string, args volume.MounterArgs) error {
	return v.SetUp(ctx, args)
}
func (stubbornVolume) TearDown(context.Context) error           { return nil }
func (stubbornVolume) TearDownAt(context.Context, string) error { return nil }

func TestPluginThatIgnoresItsContextHoldsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		release := make(chan struct{})
		w.plugins = besides(stubborn{release: release})
		manager, stop := w.start()
		defer stop()
		pod := newPod("web", v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{GitRepo: &v1.GitRepoVolumeSource{Repository: "r"}}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		volumes, err := manager.SetUpPod(ctx, pod)
		if !errors.Is(err, context.DeadlineExceeded) || volumes.Volumes[0].State != volumemanager.StatePending {
			t.Errorf("state %s, err %v; want pending at the deadline", volumes.Volumes[0].State, err)
		}
		if got := manager.Explain(); got[0].State != volumemanager.StatePending {
			t.Errorf("Explain = %+v", got)
		}
		close(release)
		synctest.Wait()
		if got := manager.Explain(); got[0].State != volumemanager.StateMounted {
			t.Errorf("after its end: %+v", got)
		}
		if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
			t.Error(err)
		}
	})
}

func TestOneOwnerForEachRoot(t *testing.T) {
	w := newWorld(t)
	first, stop := w.start()
	second, err := volumemanager.New(w.config())
	if err != nil {
		t.Fatal(err)
	}
	err = second.Run(t.Context())
	if !errors.Is(err, volumemanager.ErrRootBusy) || !strings.Contains(err.Error(), fmt.Sprintf("in use by process %d ", os.Getpid())) {
		t.Fatalf("err = %v, want the holder named", err)
	}
	if _, err := second.SetUpPod(t.Context(), newPod("web")); !errors.Is(err, volumemanager.ErrStopped) {
		t.Errorf("SetUpPod of the one that did not get the root: %v", err)
	}
	if err := first.Run(t.Context()); !errors.Is(err, volumemanager.ErrAlreadyRun) {
		t.Errorf("a second Run: %v", err)
	}
	stop()
	if _, err := first.SetUpPod(t.Context(), newPod("web")); !errors.Is(err, volumemanager.ErrStopped) {
		t.Errorf("SetUpPod after Run: %v", err)
	}
	if err := first.TearDownPod(t.Context(), "u"); !errors.Is(err, volumemanager.ErrStopped) {
		t.Errorf("TearDownPod after Run: %v", err)
	}
	w.start()
}

func TestBadInputTouchesNothing(t *testing.T) {
	withUID := func(uid types.UID) *v1.Pod { p := newPod("web", emptyDirVolume("v", "")); p.UID = uid; return p }
	tests := map[string]*v1.Pod{
		"nil":                    nil,
		"no UID":                 withUID(""),
		"UID with a slash":       withUID("../../etc"),
		"volume with a slash":    newPod("web", emptyDirVolume("a/b", "")),
		"volume dot dot":         newPod("web", emptyDirVolume("..", "")),
		"duplicate volume names": newPod("web", emptyDirVolume("a", ""), nfsVolume("a", "10.0.0.1")),
		"no source":              newPod("web", v1.Volume{Name: "a"}),
		"two sources": newPod("web", v1.Volume{Name: "a", VolumeSource: v1.VolumeSource{
			EmptyDir: &v1.EmptyDirVolumeSource{}, HostPath: &v1.HostPathVolumeSource{Path: "/etc"}}}),
		"NFS without server": newPod("web", nfsVolume("a", "")),
		"one good, one bad":  newPod("web", emptyDirVolume("good", ""), nfsVolume("bad", "")),
	}
	for name, pod := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			manager, _ := w.start()
			volumes, err := manager.SetUpPod(t.Context(), pod)
			var invalid *volume.InvalidSpecError
			if !errors.As(err, &invalid) || volumes == nil {
				t.Errorf("err = %v, want an InvalidSpecError and a result", err)
			}
			if volume.IsUncertain(err) {
				t.Errorf("a refusal counts as uncertain: %v", err)
			}
			w.untouched()
		})
	}
}

func TestConfigIsValidated(t *testing.T) {
	w := newWorld(t)
	tests := map[string]func(*volumemanager.Config){
		"relative root":     func(c *volumemanager.Config) { c.RootDir = "root" },
		"no root":           func(c *volumemanager.Config) { c.RootDir = "" },
		"root is /":         func(c *volumemanager.Config) { c.RootDir = "/" },
		"no node":           func(c *volumemanager.Config) { c.NodeName = "" },
		"no objects":        func(c *volumemanager.Config) { c.Objects = nil },
		"no plugins":        func(c *volumemanager.Config) { c.Plugins = nil },
		"duplicate plugins": func(c *volumemanager.Config) { c.Plugins = append(plugins.All(), plugins.All()...) },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			config := w.config()
			change(&config)
			if _, err := volumemanager.New(config); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestUnusableRoot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, root := range map[string]string{"a file": file, "below a file": filepath.Join(file, "root"), "cannot be written": "/proc/podvol"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.root = root
				manager, err := volumemanager.New(w.config())
				if err != nil {
					t.Fatal(err)
				}
				err = manager.Run(t.Context())
				var rootErr *volumemanager.RootError
				if !errors.As(err, &rootErr) || !strings.Contains(err.Error(), root) {
					t.Errorf("err = %v, want a RootError", err)
				}
			})
		})
	}
}

func TestReplacedSourceIsRefused(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	if _, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("v", "10.0.0.1"))); err != nil {
		t.Fatal(err)
	}
	for name, changed := range map[string]v1.Volume{"another server": nfsVolume("v", "10.0.0.2"), "another type": emptyDirVolume("v", "")} {
		t.Run(name, func(t *testing.T) {
			_, err := manager.SetUpPod(t.Context(), newPod("web", changed))
			if !errors.Is(err, volumemanager.ErrReplaced) || !strings.Contains(err.Error(), "10.0.0.1:/nfs") {
				t.Errorf("err = %v, want ErrReplaced", err)
			}
			if entries, err := w.fake.Table().BySource("10.0.0.1:/nfs"); err != nil || len(entries) != 1 {
				t.Errorf("the mounted volume was touched: %v, %v", entries, err)
			}
		})
	}
	if err := manager.TearDownPod(t.Context(), "uid-web"); err != nil {
		t.Fatal(err)
	}
	w.assertClean()
}

// A volume that is to be the same as another by now keeps what it has mounted, and
// the pod is refused, whichever of the two the manager comes to first; and a row
// shows nothing of the other one's.
func TestVolumeIsReplacedByItsNeighbour(t *testing.T) {
	for name, now := range map[string][2]string{"the first": {"two", "two"}, "the second": {"one", "one"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, claim := range []string{"one", "two"} {
				c, pv := boundPair(claim, "pv-"+claim)
				pv.Spec.NFS.Server = "server-" + claim
				w.add(c, pv)
			}
			pod := func(first, second string) *v1.Pod {
				return newPod("web", claimVolume("a", first, false), claimVolume("b", second, false))
			}
			w.leave(pod("one", "two"))
			manager, stop := w.start()
			statuses, err := manager.SetUpPod(t.Context(), pod(now[0], now[1]))
			if !errors.Is(err, volumemanager.ErrReplaced) {
				t.Errorf("err = %v, want ErrReplaced", err)
			}
			for _, row := range statuses.Volumes {
				own := "server-" + map[string]string{"a": "one", "b": "two"}[row.Volume] + ":/nfs"
				if row.Wanted && row.Err == nil || row.Source != "" && row.Source != own {
					t.Errorf("%+v", row)
				}
			}
			for _, source := range []string{"server-one:/nfs", "server-two:/nfs"} {
				if entries, err := w.fake.Table().BySource(source); err != nil || len(entries) != 1 {
					t.Errorf("mounted from %s: %v, %v", source, entries, err)
				}
			}
			if err := manager.TearDownPod(t.Context(), "uid-web"); err != nil {
				t.Fatal(err)
			}
			stop()
			w.assertClean()
		})
	}
}

func TestConcurrentCalls(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	var all sync.WaitGroup
	for i := range 8 {
		pod := newPod(fmt.Sprintf("p%d", i%4), nfsVolume("a", "10.0.0.1"), emptyDirVolume("b", ""), emptyDirVolume("c", v1.StorageMediumMemory))
		all.Go(func() {
			for range 5 {
				if _, err := manager.SetUpPod(t.Context(), pod); err != nil && !errors.Is(err, volumemanager.ErrWithdrawn) {
					t.Errorf("set up: %v", err)
				}
				manager.Explain()
				if err := manager.TearDownPod(t.Context(), pod.UID); err != nil && !errors.Is(err, volumemanager.ErrSuperseded) {
					t.Errorf("tear down: %v", err)
				}
			}
		})
	}
	all.Wait()
	for i := range 4 {
		if err := manager.TearDownPod(t.Context(), types.UID(fmt.Sprintf("uid-p%d", i))); err != nil {
			t.Error(err)
		}
	}
	w.assertClean()
}
