package volumemanager_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/journal"
	"github.com/podvol/podvol/volume/volumemanager"
)

// restored is a copy of a tree, as after a power cut: what was removed and not
// synced is there again.
func restored(t *testing.T, from, to string) {
	t.Helper()
	must(t, os.RemoveAll(to))
	must(t, os.CopyFS(to, os.DirFS(from)))
	must(t, filepath.WalkDir(to, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type() == fs.ModeSymlink { // the fake's mounts, which a cut ends
			err = errors.Join(os.Remove(path), os.Mkdir(path, 0o750))
		}
		return err
	}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A power cut after an unmount brings back, of the directories that were removed
// since the last sync, those above some depth, or all with what was in them; and
// the journal as it was after any of its syncs. After a start the pod can be
// mounted, nothing is wrong, and a volume that was not mounted again is gone.
func TestPowerCutAfterUnmount(t *testing.T) {
	pod := newPod("web", nfsVolume("a", "10.0.0.1"), emptyDirVolume("b", ""), emptyDirVolume("c", v1.StorageMediumMemory))
	file := func(root string) string {
		return filepath.Join(root, "pods", string(pod.UID), "volumes", "kubernetes.io~empty-dir", "b", "file")
	}
	state := func(root string) string { return volumemanager.StateDir(root) }
	before, after, settled := t.TempDir(), t.TempDir(), t.TempDir() // the journal, with what is beside it
	var mounted string                                              // the tree while the pod is mounted
	w := newWorld(t)
	w.leave(pod)
	must(t, os.WriteFile(file(w.root), []byte("data"), 0o600))
	mounted = t.TempDir()
	restored(t, filepath.Join(w.root, "pods"), mounted)
	restored(t, state(w.root), before)
	m, stop := w.start()
	must(t, m.TearDownPod(t.Context(), pod.UID))
	restored(t, state(w.root), after) // acknowledged, and nothing synced but the journal
	stop()
	restored(t, state(w.root), settled)
	root := w.root

	// What can come back by the syncs that were made.
	uid := string(pod.UID)
	depths := []string{"", uid, uid + "/volumes", uid + "/volumes/kubernetes.io~empty-dir", "all", "doomed"}
	for name, image := range map[string]struct {
		journal string
		back    []string
	}{
		"before the journal's sync": {before, depths},
		"after it":                  {after, depths},
		"settled":                   {settled, []string{""}}, // pods/ was synced
	} {
		for _, back := range image.back {
			for _, remount := range []bool{true, false} {
				t.Run(name+"/"+back, func(t *testing.T) {
					w := newWorld(t)
					w.root = root
					must(t, os.RemoveAll(filepath.Join(root, "pods")))
					must(t, os.Mkdir(filepath.Join(root, "pods"), 0o750))
					switch back {
					case "all", "doomed":
						restored(t, mounted, filepath.Join(root, "pods"))
						if back == "doomed" {
							must(t, os.Rename(filepath.Dir(file(root)), filepath.Join(filepath.Dir(filepath.Dir(file(root))), "deleting~b")))
						}
					default:
						must(t, os.MkdirAll(filepath.Join(root, "pods", back), 0o750))
					}
					restored(t, image.journal, state(root))
					if remount {
						w.leave(pod)
						if problems := w.check(false); len(problems) != 0 {
							t.Errorf("problems after a mount: %v", kinds(problems))
						}
					}
					m, stop := w.start()
					must(t, m.TearDownPod(t.Context(), pod.UID))
					stop()
					if problems := w.check(false); len(problems) != 0 {
						t.Errorf("problems after an unmount: %v", kinds(problems))
					}
					if left, err := os.ReadDir(filepath.Join(root, "pods")); err != nil || len(left) > 0 {
						t.Errorf("left: %v, %v", left, err)
					}
					if held, _, err := journal.Read(w.recordsPath()); err != nil || len(held) > 0 {
						t.Errorf("recorded: %v, %v", held, err)
					}
				})
			}
		}
	}
}
