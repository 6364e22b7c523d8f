package volumemanager_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/journal"
	"github.com/podvol/podvol/volume/volumemanager"
)

// The ways to lose records.
var damages = map[string]func(path string) error{
	"a flipped bit": func(path string) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text[bytes.Index(text, []byte("uid-lost"))] ^= 1
		return os.WriteFile(path, text, 0o600)
	},
	"removed": os.Remove,
	"emptied": func(path string) error { return os.Truncate(path, 0) },
	"cut after its first line": func(path string) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.Truncate(path, int64(bytes.IndexByte(text, '\n')+1))
	},
}

// Damage is found by whoever looks, and again, until a person has moved the
// damaged file away.
func TestDamageStaysFound(t *testing.T) {
	for name, spoil := range damages {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.leave(newPod("lost", nfsVolume("a", "10.0.0.1")))
			if err := spoil(w.recordsPath()); err != nil {
				t.Fatal(err)
			}
			var damaged *volumemanager.DamagedError
			for i := range 3 {
				if _, err := volumemanager.Inspect(w.root, w.fake.Table()); !errors.As(err, &damaged) {
					t.Errorf("look %d: Inspect: %v", i, err)
				}
				if got := kinds(w.check(false)); !slices.Contains(got, string(volumemanager.ProblemUnreadable)+" (not repaired)") {
					t.Errorf("look %d: Check: %v", i, got)
				}
				w.repair(false)
				manager, stop := w.start()
				if err := manager.Damaged(); !errors.As(err, &damaged) || len(damaged.Files) != 1 || !errors.As(err, new(*journal.DamagedError)) {
					t.Errorf("look %d: Damaged: %v", i, err)
				}
				stop()
			}
			if entries, err := w.fake.Table().BySource("10.0.0.1:/nfs"); err != nil || len(entries) != 1 {
				t.Errorf("the volume was touched: %v, %v", entries, err)
			}
			w.repair(true) // a record of it is made anew
			if err := os.Rename(damaged.Files[0], filepath.Join(t.TempDir(), "seen")); err != nil {
				t.Fatal(err)
			}
			if problems := w.check(false); len(problems) > 0 {
				t.Errorf("after a person has seen to it: %+v", problems)
			}
			manager, _ := w.start()
			if err := manager.Damaged(); err != nil {
				t.Error(err)
			}
			if err := manager.TearDownPod(t.Context(), "uid-lost"); err != nil {
				t.Error(err)
			}
			w.assertClean()
		})
	}
}

// A device that a lost record may share is not unmounted, and nothing that is
// attached leaves the report.
func TestDevicesStayBesideDamage(t *testing.T) {
	for name, spoil := range damages {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			d := w.withAttachableDisks()
			manager, stop := w.start()
			n := &node{manager: manager}
			n.manager.ReportedInUse(inUse("a"))
			n.attach("a")
			mustSetUp(t, manager, diskPod("lost", "a"))
			stop()
			if err := spoil(w.recordsPath()); err != nil {
				t.Fatal(err)
			}
			manager, _ = w.start()
			n.manager = manager
			n.manager.ReportedInUse(inUse("a"))
			n.attach()
			assertInUse(t, manager, "a")
			mustSetUp(t, manager, diskPod("known", "a"))
			d.log()

			var damaged *volumemanager.DamagedError
			if err := manager.TearDownPod(t.Context(), "uid-known"); !errors.As(err, &damaged) {
				t.Fatalf("the last pod that is known: %v", err)
			}
			if diff := cmpDiff([]string{"TearDown uid-known"}, d.log()); diff != "" {
				t.Error(diff)
			}
			assertInUse(t, manager, "a")
			if err := w.fake.Unmount(filepath.Join(w.root, "pods/uid-lost/volumes/example.com~disk/v-a")); err != nil {
				t.Fatal(err)
			}
			for _, file := range damaged.Files {
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
			}
			mustTearDown(t, manager, &v1.Pod{ObjectMeta: diskPod("known", "a").ObjectMeta})
			if diff := cmpDiff([]string{"UnmountDevice a"}, d.log()); diff != "" {
				t.Errorf("after a person has seen to it:\n%s", diff)
			}
			assertInUse(t, manager)
		})
	}
}

// A device that the volume of an unreadable record may share is not unmounted.
func TestADeviceStaysBesideAnUnreadableRecord(t *testing.T) {
	w := newWorld(t)
	d := w.withDisks()
	w.leave(diskPod("lost", "a"))
	spoilRecord(t, w.recordsPath(), func(string) string { return `{"version":99}` })
	manager, _ := w.start()
	mustSetUp(t, manager, diskPod("known", "a"))
	d.log()
	var unreadable *volumemanager.UnreadableRecordError
	if err := manager.TearDownPod(t.Context(), "uid-known"); !errors.As(err, &unreadable) {
		t.Errorf("TearDownPod: %v", err)
	}
	if diff := cmpDiff([]string{"TearDown uid-known"}, d.log()); diff != "" {
		t.Error(diff)
	}
}
