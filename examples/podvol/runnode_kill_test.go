package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
	"github.com/podvol/podvol/volume/standalone"
)

// Whenever the process is killed, the next ones end where one that lives would:
// each claim has one volume, nothing that was made is lost track of, data that a
// pod has stays, and what goes by policy goes.
func TestRunNodeIsKilledAtAnyMoment(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
		text := testdataFile(t, "claims/dynamic.yaml")
		putManifest(t, dir, "classes.yaml", documents(text, "StorageClass"))
		putManifest(t, dir, "other.yaml", podNamed("other", "{name: other, emptyDir: {}}"))
		volumes := filepath.Join(root, "podvol/volumes")
		for round := range 3 {
			putManifest(t, dir, "claims.yaml", documents(text, "PersistentVolumeClaim"))
			putManifest(t, dir, "pod.yaml", documents(text, "Pod"))
			killedOnTheWay(t, dir, root, round, []string{"claim~", "volume~", "pods"})
			n := runProcess(t, dir, root)
			mounted := n.become(map[string]string{"cache": "mounted", "archive": "mounted"})
			archive := filepath.Join(mounted["archive"].Path, "file")
			write(t, archive)
			write(t, filepath.Join(mounted["cache"].Path, "file"))
			// What earlier rounds have kept is there beside that.
			if made := dirsIn(t, volumes); len(made) != 2+round {
				t.Errorf("round %d: made %q", round, made)
			}

			// The claims go first, which the command must see to believe, then the pod.
			removed(t, dir, "claims.yaml")
			inDeletion := func(s recordedClaims) bool {
				return len(s.claims) == 2 && s.claims["cache"].DeletionTimestamp != nil && s.claims["archive"].DeletionTimestamp != nil
			}
			awaitStored(t, root, "in deletion", inDeletion)
			n.kill()
			killedOnTheWay(t, dir, root, round, []string{"claim~"})
			n = runProcess(t, dir, root)
			n.become(map[string]string{"cache": "mounted", "archive": "mounted"})
			awaitStored(t, root, "in deletion still", inDeletion)
			content(t, filepath.Join(mounted["cache"].Path, "file"), "precious")
			n.kill()
			removed(t, dir, "pod.yaml")
			killedOnTheWay(t, dir, root, round, []string{"claim~", "volume~", "volumes"})
			n = runProcess(t, dir, root)
			n.row("other", "mounted")
			awaitGone(t, mounted["cache"].Path)
			awaitStored(t, root, "reclaimed", func(s recordedClaims) bool {
				for _, pv := range s.volumes {
					if pv.Status.Phase != v1.VolumeReleased {
						return false
					}
				}
				return len(s.claims) == 0 && len(s.volumes) == 1+round
			})
			content(t, archive, "precious")
			if made := dirsIn(t, volumes); len(made) != 1+round {
				t.Errorf("round %d: left %q", round, made)
			}
			n.stop()
		}
		if pods, err := os.ReadDir(filepath.Join(root, "pods")); err != nil || len(pods) != 1 {
			t.Errorf("left: %v, %v", pods, err)
		}
	})
}

// killedOnTheWay runs the command several times, and kills it when something has
// changed in one of the directories that it writes, at the first change, the
// second, and so on.
func killedOnTheWay(t *testing.T, dir, root string, round int, parts []string) {
	t.Helper()
	for i, part := range parts {
		watched := standalone.ClaimsDir(root)
		switch part {
		case "pods":
			watched = filepath.Join(root, "pods")
		case "volumes":
			watched = filepath.Join(root, "podvol/volumes")
		}
		if err := os.MkdirAll(watched, 0o700); err != nil {
			t.Fatal(err)
		}
		w, err := manifestdir.NewWatch(watched)
		if err != nil {
			t.Fatal(err)
		}
		n := runProcess(t, dir, root)
		done := time.After(300 * time.Millisecond) // nothing more will change then
		for range 1 + i + 2*round {
			select {
			case <-w.Changed():
				continue
			case <-done:
			}
			break
		}
		n.kill()
		w.Close()
	}
}

func removed(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// dirsIn lists the directories in one, save the hidden ones.
func dirsIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names
}
