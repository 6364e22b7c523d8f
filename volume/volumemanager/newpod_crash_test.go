package volumemanager_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/journal"
	"github.com/podvol/podvol/volume/volumemanager"
)

// The directories of a new pod, one below the other, down to its volume's.
var wayOfNewPod = []string{"uid-web", "volumes", "kubernetes.io~nfs", "v"}

// A power cut while a new pod's first volume is set up leaves its record, and of the directories
// as many as had reached the disk. The next start goes on from each of them, or removes them.
func TestPowerCutOnTheWayToANewPod(t *testing.T) {
	pod := newPod("web", nfsVolume("v", "10.0.0.1"))
	cut := t.TempDir()
	w := newWorld(t)
	manager, stop := w.start()
	copied := make(chan error, 1)
	w.fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return c.Op == mount.OpMount }, Nth: 1, Hook: func() {
		if _, err := os.Lstat(filepath.Join(w.root, "pods", filepath.Join(wayOfNewPod...))); err != nil {
			t.Error(err)
		}
		copied <- os.CopyFS(cut, os.DirFS(volumemanager.StateDir(w.root)))
	}})
	mustSetUp(t, manager, pod)
	must(t, <-copied)
	stop()
	root := w.root
	for depth := range len(wayOfNewPod) + 1 {
		back := filepath.Join(wayOfNewPod[:depth]...)
		for name, wanted := range map[string]bool{"wanted": true, "not wanted": false} {
			t.Run(name+"/"+back, func(t *testing.T) {
				w := newWorld(t)
				w.root = root
				must(t, os.RemoveAll(filepath.Join(root, "pods")))
				must(t, os.MkdirAll(filepath.Join(root, "pods", back), 0o750))
				restored(t, cut, volumemanager.StateDir(w.root))
				manager, stop := w.start()
				if rows := manager.Explain(); len(rows) != 1 {
					t.Errorf("found %v", rows)
				}
				if wanted {
					mustSetUp(t, manager, pod)
					if mounted, err := w.fake.IsMountPoint(filepath.Join(w.root, "pods", filepath.Join(wayOfNewPod...))); !mounted || err != nil {
						t.Errorf("mounted: %v, %v", mounted, err)
					}
				}
				must(t, manager.TearDownPod(t.Context(), pod.UID))
				w.assertClean()
				stop()
				if held, _, err := journal.Read(w.recordsPath()); err != nil || len(held) > 0 {
					t.Errorf("recorded: %v, %v", held, err)
				}
				if problems := w.check(false); len(problems) != 0 {
					t.Errorf("problems: %v", kinds(problems))
				}
			})
		}
	}
}

// A directory of a new pod that cannot be made fails the set-up, which says which it is, and
// nothing of podvol's is left beside what was in the way.
func TestAWayToANewPodThatIsBlocked(t *testing.T) {
	for depth := range wayOfNewPod {
		way := filepath.Join(wayOfNewPod[:depth+1]...)
		t.Run(way, func(t *testing.T) {
			pod := newPod("web", nfsVolume("v", "10.0.0.1"))
			w := newWorld(t)
			manager, stop := w.start()
			file := filepath.Join(w.root, "pods", way)
			must(t, os.MkdirAll(filepath.Dir(file), 0o750))
			must(t, os.WriteFile(file, []byte("another's"), 0o600))
			if _, err := manager.SetUpPod(t.Context(), pod); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("err = %v, want one that names %s", err, file)
			}
			must(t, manager.TearDownPod(t.Context(), pod.UID))
			if text, err := os.ReadFile(file); err != nil || string(text) != "another's" {
				t.Fatalf("the file in the way: %q, %v", text, err)
			}
			must(t, os.Remove(file))
			mustSetUp(t, manager, pod)
			must(t, manager.TearDownPod(t.Context(), pod.UID))
			w.assertClean()
			stop()
		})
	}
}
