package volumemanager_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// leaveWork leaves what a crashed agent had mounted for itself.
func (w *world) leaveWork(names ...string) {
	w.t.Helper()
	for _, name := range names {
		dir := filepath.Join(w.workDir(), name)
		if err := os.MkdirAll(dir, 0o750); err != nil {
			w.t.Fatal(err)
		}
		if err := w.fake.Mount("10.0.0.9:/"+name, dir, "nfs", nil); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) workDir() string { return filepath.Join(w.root, "plugins/kubernetes.io/nfs/work") }

func (w *world) assertNoWork() {
	w.t.Helper()
	if left, err := os.ReadDir(w.workDir()); !errors.Is(err, os.ErrNotExist) {
		w.t.Errorf("left of the plugin's own work: %v, %v", left, err)
	}
}

func TestFsckKnowsWhatPluginsMountForThemselves(t *testing.T) {
	w := newWorld(t)
	w.leaveWork("a", "b")
	want := []string{"mount of a plugin's own", "mount of a plugin's own"}
	if diff := cmpDiff(want, w.repair(false)); diff != "" {
		t.Error(diff)
	}
	if problems := w.check(false); len(problems) > 0 {
		t.Errorf("after the repair: %+v", problems)
	}
	w.assertNoWork()
	w.assertClean()
}

// What is left of a dead server's is taken away by force, and delays nobody.
func TestManagerUnmountsWhatPluginsHadMountedForThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.leaveWork("alive", "dead")
		w.fake.Inject(fakemount.Fault{
			Match: func(c fakemount.Call) bool { return filepath.Base(c.Target) == "dead" && c.Op == mount.OpUnmount },
			Err:   unix.EBUSY,
		})
		manager, stop := w.start()
		pod := newPod("web", nfsVolume("v", "10.0.0.1"))
		begun := time.Now()
		setUp(t, manager, pod)
		if took := time.Since(begun); took > time.Second {
			t.Errorf("a volume of another server took %v", took)
		}
		synctest.Wait()
		if _, err := os.Lstat(filepath.Join(w.workDir(), "alive")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what was left of a server that answers: %v", err)
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		w.assertNoWork()
		tearDown(t, manager, pod)
		stop()
		w.assertClean()
	})
}

// What no plugin could understand is refused before the pod is declared.
func TestPodsWithAnnotationsForNothingAreRefused(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := newPod("web", emptyDirVolume("scratch", ""))
	pod.Annotations = map[string]string{"mount-options.podvol.io/scratch": "size=1"}
	_, err := manager.SetUpPod(t.Context(), pod)
	for _, err := range []error{err, manager.PutPod(pod)} {
		if wrong, ok := errors.AsType[*volume.InvalidSpecError](err); !ok || wrong.Field != `metadata.annotations["mount-options.podvol.io/scratch"]` {
			t.Errorf("err = %v", err)
		}
	}
	if rows := manager.Explain(); len(rows) > 0 {
		t.Errorf("it was declared: %+v", rows)
	}
}

// Annotations change while a pod runs, and its volumes do not: what has become
// nonsense leaves them mounted, also after a restart, and other changes go on.
func TestAnnotationsThatBecomeNonsenseLeaveWhatIsMounted(t *testing.T) {
	for _, key := range []string{"mount-options.podvol.io/v", "mount-options.podvol.io/nosuch"} {
		w := newWorld(t)
		w.containers = &containers{gone: map[types.UID]bool{"uid-web": true}}
		manager, stop := w.start()
		pod := newPod("web", nfsVolume("v", "10.0.0.1"))
		setUp(t, manager, pod)
		pod.Annotations = map[string]string{key: "hard,,"}
		if err := manager.CheckPod(pod); err == nil {
			t.Error("CheckPod understands it")
		}
		if err := manager.PutPod(pod); err != nil {
			t.Errorf("%s: PutPod = %v", key, err)
		}
		setUp(t, manager, pod)
		stop()
		w.fake.ResetCalls()
		manager, err := volumemanager.New(w.config())
		if err != nil {
			t.Fatal(err)
		}
		if err := manager.PutPod(pod); err != nil { // before the records have been read
			t.Errorf("%s: PutPod before Run = %v", key, err)
		}
		stop = w.run(manager)
		if err := manager.PutPod(pod); err != nil {
			t.Errorf("%s: PutPod after a restart = %v", key, err)
		}
		manager.PodsComplete()
		setUp(t, manager, pod)
		if calls := w.fake.Calls(); len(calls) != 0 {
			t.Errorf("%s: %v", key, calls)
		}
		tearDown(t, manager, pod)
		stop()
		w.assertClean()
	}
}
