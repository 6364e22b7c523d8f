package volumemanager_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager"
)

func kinds(problems []volumemanager.Problem) (kinds []string) {
	for _, p := range problems {
		kind := string(p.Kind)
		if p.Repair == "" {
			kind += " (not repaired)"
		}
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return kinds
}

func (w *world) check(adopt bool) []volumemanager.Problem {
	w.t.Helper()
	config := w.config()
	config.Adopt = adopt
	problems, err := volumemanager.Check(w.t.Context(), config)
	if err != nil {
		w.t.Fatal(err)
	}
	return problems
}

// repair repairs and fails on a repair that fails.
func (w *world) repair(adopt bool) (seen []string) {
	w.t.Helper()
	config := w.config()
	config.Adopt = adopt
	var problems []volumemanager.Problem
	err := volumemanager.Repair(w.t.Context(), config, func(p volumemanager.Problem, err error) {
		problems = append(problems, p)
		if err != nil {
			w.t.Errorf("%s of %s: %v", p.Kind, p.Path, err)
		}
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return kinds(problems)
}

// leave sets a pod up and ends the manager.
func (w *world) leave(pods ...*v1.Pod) {
	w.t.Helper()
	manager, stop := w.start()
	defer stop()
	for _, pod := range pods {
		if _, err := manager.SetUpPod(w.t.Context(), pod); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestFsckOfAHealthyRoot(t *testing.T) {
	w := newWorld(t)
	if problems := w.check(false); len(problems) != 0 {
		t.Errorf("a root that does not exist: %+v", problems)
	}
	w.leave(newPod("web", nfsVolume("a", "10.0.0.1"), emptyDirVolume("b", "")))
	if problems := w.check(false); len(problems) != 0 {
		t.Errorf("problems: %+v", problems)
	}
	w.fake.ResetCalls()
	if seen := w.repair(true); len(seen) != 0 || len(w.fake.Calls()) != 0 || len(w.records()) != 2 {
		t.Errorf("repaired %v, calls %v", seen, w.fake.Calls())
	}
}

// The table has paths without links, of which the root and what is in it may be some.
func TestRootWithLinks(t *testing.T) {
	for _, dir := range []string{".", "pods"} {
		t.Run(dir, func(t *testing.T) {
			w := newWorld(t)
			elsewhere, link := t.TempDir(), filepath.Join(w.root, dir)
			if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o700), os.RemoveAll(link), os.Symlink(elsewhere, link)); err != nil {
				t.Fatal(err)
			}
			w.leave(newPod("web", nfsVolume("a", "10.0.0.1"), emptyDirVolume("b", v1.StorageMediumMemory)))
			if problems := w.check(false); len(problems) != 0 {
				t.Errorf("problems: %v", kinds(problems))
			}
			w.fake.ResetCalls()
			w.leave(newPod("web", nfsVolume("a", "10.0.0.1"), emptyDirVolume("b", v1.StorageMediumMemory)))
			for _, c := range w.fake.Calls() {
				if isMount(c) {
					t.Errorf("mounted again: %v", c)
				}
			}
		})
	}
}

func TestFsckFinishesWhatWasBegun(t *testing.T) {
	w := newWorld(t)
	died := errors.New("the process died")
	remove := w.fake.Inject(fakemount.Fault{Err: died, After: true, Match: isMount}, fakemount.Fault{Err: died, Match: isUnmount})
	manager, stop := w.start()
	if _, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("a", "10.0.0.1"))); !errors.Is(err, died) {
		t.Fatal(err)
	}
	stop()
	remove()
	before := len(w.fake.Calls())
	if diff := cmpDiff([]string{"unfinished set-up"}, kinds(w.check(false))); diff != "" {
		t.Error(diff)
	}
	if len(w.fake.Calls()) != before || len(w.records()) != 1 {
		t.Error("a check has changed something")
	}
	w.repair(false)
	w.assertClean()
}

func TestFsckAfterAReboot(t *testing.T) {
	w := newWorld(t)
	w.leave(newPod("web", nfsVolume("a", "10.0.0.1")))
	target := filepath.Join(w.root, "pods/uid-web/volumes/kubernetes.io~nfs/a")
	if err := w.fake.Unmount(target); err != nil { // behind podvol's back
		t.Fatal(err)
	}
	if diff := cmpDiff([]string{"record without mount"}, kinds(w.check(false))); diff != "" {
		t.Error(diff)
	}
	w.repair(false)
	w.assertClean()
}

func TestFsckUnstacks(t *testing.T) {
	w := newWorld(t)
	w.leave(newPod("web", emptyDirVolume("a", v1.StorageMediumMemory)))
	target := filepath.Join(w.root, "pods/uid-web/volumes/kubernetes.io~empty-dir/a")
	if err := os.WriteFile(filepath.Join(target, "data"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.fake.Mount("late", target, "tmpfs", nil); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmpDiff([]string{"mounted twice"}, kinds(w.check(false))); diff != "" {
		t.Error(diff)
	}
	w.repair(false)
	if got := kinds(w.check(false)); len(got) != 0 {
		t.Errorf("still %v", got)
	}
	if data, err := os.ReadFile(filepath.Join(target, "data")); err != nil || string(data) != "precious" {
		t.Errorf("the volume shows %q, %v", data, err)
	}
}

// A volume whose plugin is not there is nobody's to unmount.
func TestFsckLeavesVolumesOfOtherPlugins(t *testing.T) {
	w := newWorld(t)
	place := filepath.Join(w.root, "pods/other/volumes/example.com~disk/v/mount")
	if err := os.MkdirAll(place, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := w.fake.Mount("x", place, "tmpfs", nil); err != nil {
		t.Fatal(err)
	}
	problems := w.check(true)
	if diff := cmpDiff([]string{"volume without record (not repaired)"}, kinds(problems)); diff != "" {
		t.Fatal(diff)
	}
	if !strings.Contains(problems[0].Advice, "Leave it mounted") {
		t.Errorf("the advice is %q", problems[0].Advice)
	}
}

// What others mount inside a volume is not the volume's.
func TestFsckFindsMountsInAVolume(t *testing.T) {
	w := newWorld(t)
	w.leave(newPod("web", emptyDirVolume("a", "")))
	inside := filepath.Join(w.root, "pods/uid-web/volumes/kubernetes.io~empty-dir/a/inside")
	if err := os.Mkdir(inside, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := w.fake.Mount("x", inside, "tmpfs", nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmpDiff([]string{"mount that is no volume (not repaired)"}, kinds(w.check(false))); diff != "" {
		t.Error(diff)
	}
}

// What podvol has no record of is not touched.
func TestFsckLeavesOthersAlone(t *testing.T) {
	w := newWorld(t)
	orphan := filepath.Join(w.root, "pods/other/volumes/kubernetes.io~empty-dir/cache")
	stray := filepath.Join(w.root, "pods/other/somewhere")
	for _, dir := range []string{orphan, stray} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(orphan, "data"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.fake.Mount("x", stray, "tmpfs", nil); err != nil {
		t.Fatal(err)
	}
	w.fake.ResetCalls()
	want := []string{"mount that is no volume (not repaired)", "volume without record (not repaired)"}
	if diff := cmpDiff(want, w.repair(false)); diff != "" {
		t.Error(diff)
	}
	if data, err := os.ReadFile(filepath.Join(orphan, "data")); err != nil || string(data) != "precious" || len(w.fake.Calls()) != 0 {
		t.Errorf("%q, %v, %v", data, err, w.fake.Calls())
	}
}

// A kubelet's root, without records: adopted volumes are known to the pods that
// come back, and go with those that do not.
func TestAdoption(t *testing.T) {
	w := newWorld(t)
	claim, pv := boundPair("nfs-211", "nfs211")
	w.add(claim, pv)
	running := newPod("running", claimVolume("vol1", "nfs-211", false), emptyDirVolume("scratch", ""))
	w.leave(running, newPod("gone", nfsVolume("a", "10.0.0.1"), emptyDirVolume("b", v1.StorageMediumMemory)))
	w.neverRecorded()
	scratch := filepath.Join(w.root, "pods/uid-running/volumes/kubernetes.io~empty-dir/scratch/data")
	if err := os.WriteFile(scratch, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := kinds(w.check(false)); len(got) != 4 || got[0] != "volume without record (not repaired)" {
		t.Errorf("without adoption: %v", got)
	}
	w.fake.ResetCalls()
	if got := w.repair(true); len(got) != 4 || got[0] != "volume without record" || len(w.records()) != 4 {
		t.Errorf("with adoption: %v, %v", got, w.records())
	}
	if calls := w.fake.Calls(); len(calls) != 0 {
		t.Errorf("adoption mounts: %v", calls)
	}
	w.containers = &runningPods{}
	manager, stop := w.start()
	defer stop()
	if _, err := manager.SetUpPod(t.Context(), running); err != nil {
		t.Fatal(err)
	}
	if calls := w.fake.Calls(); len(calls) != 0 {
		t.Errorf("what was mounted is mounted again: %v", calls)
	}
	manager.PodsComplete()
	if err := manager.WaitForUnmounted(t.Context(), "uid-gone"); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(scratch); err != nil || string(data) != "precious" {
		t.Errorf("%q, %v", data, err)
	}
	if rows := manager.Explain(); len(rows) != 2 || rows[0].Volume != "scratch" || rows[1].Volume != "vol1" {
		t.Errorf("rows = %+v", rows)
	}
	if err := manager.TearDownPod(t.Context(), running.UID); err != nil {
		t.Fatal(err)
	}
	w.assertClean()
}

func TestAdoptionByTheManager(t *testing.T) {
	w := newWorld(t)
	w.leave(newPod("web", nfsVolume("a", "10.0.0.1")))
	w.neverRecorded()
	manager, stop := w.start()
	if rows := manager.Explain(); len(rows) != 0 {
		t.Errorf("adopted without being asked: %+v", rows)
	}
	stop()
	config := w.config()
	config.Adopt = true
	manager, err := volumemanager.New(config)
	if err != nil {
		t.Fatal(err)
	}
	stop = w.run(manager)
	defer stop()
	// The pod wants another server than the one that is mounted.
	if _, err := manager.SetUpPod(t.Context(), newPod("web", nfsVolume("a", "10.0.0.9"))); !errors.Is(err, volumemanager.ErrReplaced) {
		t.Errorf("err = %v", err)
	}
	if err := manager.TearDownPod(t.Context(), "uid-web"); err != nil {
		t.Fatal(err)
	}
	w.assertClean()
}

func TestAdoptionIsRefusedBesideAKubelet(t *testing.T) {
	w := newWorld(t)
	w.kubelets = true
	w.leave(newPod("web", nfsVolume("a", "10.0.0.1")))
	kubelet := filepath.Join(t.TempDir(), "kubelet")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(sleep, kubelet); err != nil {
		t.Fatal(err)
	}
	running := exec.Command(kubelet, "1000")
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = running.Wait() }()
	defer func() { _ = running.Process.Kill() }()
	config := w.config()
	config.Adopt = true
	manager, err := volumemanager.New(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := manager.Run(t.Context()); !errors.Is(err, volumemanager.ErrKubeletRuns) {
		t.Errorf("Run: %v", err)
	}
	if err := volumemanager.Repair(t.Context(), config, nil); !errors.Is(err, volumemanager.ErrKubeletRuns) {
		t.Errorf("Repair: %v", err)
	}
}

// A helper that outlives its agent is ended before anything is mounted again.
func TestHelpersOfADeadOwner(t *testing.T) {
	w := newWorld(t)
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "mount.late")
	if err := os.Symlink(sleep, name); err != nil {
		t.Fatal(err)
	}
	start := func(arg string) (ended chan error, process *os.Process) {
		c := exec.Command(name, "1000")
		c.Args = []string{"mount.late", "1000"}
		// sleep(1) takes several durations; a path is none, so it stands in argv[0].
		c.Args[0] = arg
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill() }) // if the test fails before
		ended = make(chan error, 1)
		go func() { ended <- c.Wait() }()
		return ended, c.Process
	}
	ours, _ := start(filepath.Join(w.root, "pods/u/volumes/p/v"))
	// mount(8) gives its helper the path without links.
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.MkdirAll(w.root, 0o700), os.Symlink(w.root, link)); err != nil {
		t.Fatal(err)
	}
	w.root = link
	others, process := start(filepath.Join(t.TempDir(), "pods/u/volumes/p/v"))
	if diff := cmpDiff([]string{"mount helper of a dead owner"}, kinds(w.check(false))); diff != "" {
		t.Fatal(diff)
	}
	_, stop := w.start()
	defer stop()
	if err := <-ours; err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the helper ended with %v", err)
	}
	select {
	case err := <-others:
		t.Errorf("another root's helper was ended: %v", err)
	default:
	}
	if err := process.Kill(); err != nil {
		t.Error(err)
	}
	<-others
}

// What a helper mounts before it has ended is found, although the helper was there when the
// repair began.
func TestRepairFindsWhatAHelperStillMounts(t *testing.T) {
	w := newWorld(t)
	w.leave(newPod("web", emptyDirVolume("a", v1.StorageMediumMemory)))
	target := filepath.Join(w.root, "pods/uid-web/volumes/kubernetes.io~empty-dir/a")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "mount.late")
	if err := os.Symlink(sleep, name); err != nil {
		t.Fatal(err)
	}
	helper := exec.Command(name)
	helper.Args = []string{target, "1000"}
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = helper.Process.Kill() })
	var told []volumemanager.Problem
	err = volumemanager.Repair(t.Context(), w.config(), func(p volumemanager.Problem, err error) {
		told = append(told, p)
		if err != nil {
			t.Errorf("%s: %v", p.Kind, err)
		}
		if p.PID != 0 {
			if err := w.fake.Mount("late", target, "tmpfs", nil); err != nil { // in the moment before its end
				t.Error(err)
			}
		}
	})
	_ = helper.Wait()
	if diff := cmpDiff([]string{"mount helper of a dead owner", "mounted twice"}, kinds(told)); diff != "" || err != nil {
		t.Errorf("%v: %s", err, diff)
	}
	if left := kinds(w.check(false)); len(left) != 0 {
		t.Errorf("after the repair: %v", left)
	}
}

func TestRepairNeedsTheRoot(t *testing.T) {
	w := newWorld(t)
	_, stop := w.start()
	defer stop()
	if err := volumemanager.Repair(t.Context(), w.config(), nil); !errors.Is(err, volumemanager.ErrRootBusy) {
		t.Errorf("err = %v", err)
	}
}

func TestFsckSaysWhatItCannotRead(t *testing.T) {
	w := newWorld(t)
	w.leave(newPod("web", nfsVolume("v", "10.0.0.1")))
	spoilRecord(t, w.recordsPath(), func(v string) string { return strings.Replace(v, `"version":2`, `"version":9`, 1) })
	problems := w.check(true)
	if len(problems) != 1 || problems[0].Repair != "" || problems[0].Advice == "" || !errors.Is(problems[0].Err, mountrecord.ErrNewer) {
		t.Errorf("problems = %+v", problems)
	}
	w.repair(true)
	if len(w.records()) != 1 {
		t.Errorf("records = %v", w.records())
	}
}

// A directory that somebody has removed is no mounted volume, and setting the pod up
// again makes it anew.
func TestDirectoryThatIsGone(t *testing.T) {
	w := newWorld(t)
	pod := newPod("web", nfsVolume("a", "10.0.0.1"), emptyDirVolume("b", ""), emptyDirVolume("c", ""))
	w.leave(pod)
	rows, err := volumemanager.Inspect(w.root, w.fake.Table())
	if err != nil || len(rows) != 3 || rows[1].Err != nil {
		t.Fatalf("%+v, %v", rows, err)
	}
	if err := os.RemoveAll(rows[1].Path); err != nil {
		t.Fatal(err)
	}
	look := func() []volumemanager.VolumeStatus {
		rows, err := volumemanager.Inspect(w.root, w.fake.Table())
		if err != nil || len(rows) != 3 {
			t.Fatalf("%+v, %v", rows, err)
		}
		return rows
	}
	rows = look()
	if row := rows[1]; row.State != volumemanager.StateFailed || !errors.Is(row.Err, volumemanager.ErrDirectoryGone) {
		t.Errorf("state %s, %v", row.State, row.Err)
	}
	for _, i := range []int{0, 2} {
		if rows[i].State != volumemanager.StateMounted || rows[i].Err != nil {
			t.Errorf("its neighbour: %+v", rows[i])
		}
	}
	if got := kinds(w.check(false)); !slices.Equal(got, []string{string(volumemanager.ProblemNoDirectory)}) {
		t.Errorf("problems: %q", got)
	}
	w.leave(pod)
	if rows := look(); rows[1].State != volumemanager.StateMounted || rows[1].Err != nil {
		t.Errorf("set up again: %+v", rows[1])
	}
	if err := os.RemoveAll(rows[1].Path); err != nil {
		t.Fatal(err)
	}
	w.repair(false)
	if problems := w.check(false); len(problems) != 0 {
		t.Errorf("repaired: %+v", problems)
	}
}
