package rootdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/journal"
	"github.com/podvol/podvol/volume/mountrecord"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Records of volumes that are gone are forgotten only after every directory was
// synced in which something of theirs was, and kept where that fails.
func TestBuriedRecordsAreKeptUntilSynced(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(PodsDir(root), "two", "volumes", "x~y"), 0o750))
	must(t, os.MkdirAll(StateDir(root), 0o700))
	r, _, _, err := OpenRecords(root)
	must(t, err)
	var synced []string
	failure := errors.New("the disk fails")
	fail := true
	r.tombstones.sync = func(dir *os.File) error {
		if held, _, err := journal.Read(RecordsPath(root)); err != nil || len(held) != 2 {
			t.Errorf("forgotten before %s was synced: %v, %v", dir.Name(), held, err)
		}
		rest, _ := filepath.Rel(root, dir.Name())
		synced = append(synced, rest)
		if fail {
			return failure
		}
		return nil
	}
	for _, uid := range []types.UID{"one", "two"} {
		key := Key{uid, "x/y", "v"}
		must(t, r.journal.Move(key.String(), tombstonePrefix+"1/"+key.String(), []byte("{}")))
		r.tombstones.add(buried{Key: key, under: tombstonePrefix + "1/" + key.String()})
	}
	r.forgetAllGone()
	if len(synced) == 0 || len(r.tombstones.ripe) != 2 {
		t.Fatalf("synced %v, waiting %v", synced, r.tombstones.ripe)
	}
	synced, fail = nil, false
	must(t, r.Close())
	slices.Sort(synced)
	if want := []string{"pods", "pods/two", "pods/two/volumes", "pods/two/volumes/x~y"}; !slices.Equal(synced, want) {
		t.Errorf("synced %v, want %v", synced, want)
	}
	if held, _, err := journal.Read(RecordsPath(root)); err != nil || len(held) > 0 {
		t.Errorf("held: %v, %v", held, err)
	}
}

// What somebody else has put where a volume was is never taken for podvol's.
func TestNothingIsBuriedWhereSomethingStands(t *testing.T) {
	root := t.TempDir()
	key := Key{"uid", "x/y", "v"}
	must(t, os.MkdirAll(VolumePlace(root, key), 0o750))
	must(t, os.MkdirAll(StateDir(root), 0o700))
	r, _, _, err := OpenRecords(root)
	must(t, err)
	must(t, r.journal.Put(key.String(), []byte("{}")))
	must(t, r.Release(key, nil))
	if held, _, err := journal.Read(RecordsPath(root)); err != nil || len(held) > 0 {
		t.Errorf("held: %v, %v", held, err)
	}
	must(t, r.Close())
}

// While pods have other volumes, their directories are not synced for those that are gone, up to
// a limit. Once they are gone too, one directory is synced for all.
func TestDirectoriesOfPodsThatStayAreSyncedLate(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(StateDir(root), 0o700))
	must(t, os.MkdirAll(PodsDir(root), 0o750))
	r, _, _, err := OpenRecords(root)
	must(t, err)
	var synced []string
	r.tombstones.sync = func(dir *os.File) error {
		rest, _ := filepath.Rel(root, dir.Name())
		synced = append(synced, rest)
		return nil
	}
	pods := 0
	bury := func(n int, stay bool) {
		for range n {
			pods++
			key := Key{types.UID(fmt.Sprint("p", pods)), "x/y", "v"}
			if stay {
				must(t, os.Mkdir(filepath.Join(PodsDir(root), string(key.PodUID)), 0o750))
			}
			must(t, r.journal.Put(key.String(), []byte("{}")))
			must(t, r.Release(key, &mountrecord.Record{PodUID: key.PodUID, Volumes: []string{"v"}, Plugin: "x/y", Path: VolumePlace(root, key), InlineVolume: &v1.Volume{Name: "v"}}))
		}
	}
	bury(maxEarly, true)
	if len(synced) > 0 {
		t.Errorf("synced %v", synced)
	}
	bury(maxEarly, true)
	if len(synced) == 0 || r.tombstones.waits > maxEarly+maxEarly/2 {
		t.Errorf("synced %v, %d are waiting", synced, r.tombstones.waits)
	}
	for n := range pods {
		must(t, os.Remove(filepath.Join(PodsDir(root), fmt.Sprint("p", n+1))))
	}
	synced = nil
	bury(maxEarly, false)
	if want := []string{"pods"}; !slices.Equal(slices.Compact(synced), want) {
		t.Errorf("synced %v, want %v", synced, want)
	}
	must(t, r.Close())
	if held, _, err := journal.Read(RecordsPath(root)); err != nil || len(held) > 0 {
		t.Errorf("held: %v, %v", held, err)
	}
}

// A pod's directory that had gone with its last volume is not looked for again: one that is there
// now is another one.
func TestOfAPodThatHadGoneNothingElseIsSynced(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(StateDir(root), 0o700))
	must(t, os.MkdirAll(PodsDir(root), 0o750))
	r, _, _, err := OpenRecords(root)
	must(t, err)
	var synced []string
	r.tombstones.sync = func(dir *os.File) error {
		synced = append(synced, filepath.Base(dir.Name()))
		return nil
	}
	key := Key{"one", "x/y", "v"}
	must(t, r.journal.Put(key.String(), []byte("{}")))
	must(t, r.Release(key, &mountrecord.Record{PodUID: key.PodUID, Volumes: []string{"v"}, Plugin: "x/y", Path: VolumePlace(root, key), InlineVolume: &v1.Volume{Name: "v"}}))
	must(t, os.MkdirAll(VolumePlace(root, key), 0o750))
	must(t, r.Close())
	if want := []string{"pods"}; !slices.Equal(synced, want) {
		t.Errorf("synced %v, want %v", synced, want)
	}
}

// The last volume of a pod takes those with it that went before: none of their directories is
// synced, and none is looked for.
func TestTheLastVolumeTakesTheOthersWithIt(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(StateDir(root), 0o700))
	must(t, os.MkdirAll(PodsDir(root), 0o750))
	r, _, _, err := OpenRecords(root)
	must(t, err)
	var synced []string
	fail := true
	r.tombstones.sync = func(dir *os.File) error {
		synced = append(synced, filepath.Base(dir.Name()))
		if fail {
			return errors.New("the disk fails")
		}
		return nil
	}
	release := func(uid types.UID, name string) {
		key := Key{uid, "x/y", name}
		must(t, r.journal.Put(key.String(), []byte("{}")))
		must(t, r.Release(key, &mountrecord.Record{PodUID: key.PodUID, Volumes: []string{name}, Plugin: "x/y", Path: VolumePlace(root, key), InlineVolume: &v1.Volume{Name: name}}))
	}
	goes := func(uid types.UID) {
		plugin := filepath.Dir(VolumePlace(root, Key{uid, "x/y", ""}))
		must(t, os.MkdirAll(plugin, 0o750))
		release(uid, "first")
		release(uid, "second")
		must(t, os.RemoveAll(filepath.Join(PodsDir(root), string(uid))))
		release(uid, "last")
		must(t, os.MkdirAll(plugin, 0o750)) // another one
	}
	for i := range maxTombstones / 3 {
		goes(types.UID(fmt.Sprint("p", i)))
	}
	if len(synced) > 0 || r.tombstones.waits > 0 {
		t.Errorf("synced %v, %d wait for their pods", synced, r.tombstones.waits)
	}
	goes("next")
	if kept := len(r.tombstones.ripe); kept != maxTombstones/3*3+3 {
		t.Errorf("%d are kept after a failure", kept)
	}
	fail = false
	must(t, r.Close())
	if want := []string{"pods", "pods"}; !slices.Equal(synced, want) {
		t.Errorf("synced %v, want %v", synced, want)
	}
	if held, _, err := journal.Read(RecordsPath(root)); err != nil || len(held) > 0 {
		t.Errorf("held: %v, %v", held, err)
	}
}

// A volume that goes from a later directory of the pod's name is not taken for one of the earlier.
func TestThePodComesAgainBeforeItsLastVolumeIsBuried(t *testing.T) {
	root := t.TempDir()
	must(t, os.MkdirAll(StateDir(root), 0o700))
	must(t, os.MkdirAll(PodsDir(root), 0o750))
	r, _, _, err := OpenRecords(root)
	must(t, err)
	var synced []string
	r.tombstones.sync = func(dir *os.File) error { synced = append(synced, filepath.Base(dir.Name())); return nil }
	record := func(key Key) *mountrecord.Record {
		must(t, r.journal.Put(key.String(), []byte("{}")))
		return &mountrecord.Record{PodUID: key.PodUID, Volumes: []string{key.Spec}, Plugin: "x/y", Path: VolumePlace(root, key), InlineVolume: &v1.Volume{Name: key.Spec}}
	}
	plugin := filepath.Dir(VolumePlace(root, Key{"uid", "x/y", ""}))
	must(t, os.MkdirAll(plugin, 0o750))
	early, last, again := Key{"uid", "x/y", "early"}, Key{"uid", "x/y", "last"}, Key{"uid", "x/y", "again"}
	must(t, r.Release(early, record(early)))
	must(t, os.RemoveAll(filepath.Join(PodsDir(root), "uid")))
	b := buried{Key: last, look: r.tombstones.nextLook(), last: !HasPod(root, "uid")}
	must(t, os.MkdirAll(plugin, 0o750)) // another one
	must(t, r.Release(again, record(again)))
	must(t, r.moveToTombstone(b, record(last)))
	if ripe, waits := len(r.tombstones.ripe), r.tombstones.waits; ripe != 2 || waits != 1 {
		t.Errorf("%d are ripe, %d wait", ripe, waits)
	}
	must(t, r.Close())
	if !slices.Contains(synced, filepath.Base(plugin)) {
		t.Errorf("synced %v, but not the directory that the volume was removed from", synced)
	}
}

// What may be a volume is seen by its name alone, and names are compared as the kernel does.
func TestWhatIsBack(t *testing.T) {
	long := strings.Repeat("l", 253) // as of a PersistentVolume; with a prefix no file has it
	for _, tc := range []struct {
		name string
		make func(root string) error
		key  Key
		back bool
	}{
		{"nothing", func(string) error { return nil }, Key{"uid", "x/y", "v"}, false},
		{"another volume", func(root string) error { return os.MkdirAll(VolumePlace(root, Key{"uid", "x/y", "w"}), 0o750) }, Key{"uid", "x/y", "v"}, false},
		{"a directory", func(root string) error { return os.MkdirAll(VolumePlace(root, Key{"uid", "x/y", "v"}), 0o750) }, Key{"uid", "x/y", "v"}, true},
		{"a rest", func(root string) error { return os.MkdirAll(VolumePlace(root, Key{"uid", "x/y", "deleting~v"}), 0o750) }, Key{"uid", "x/y", "v"}, true},
		{"a broken link to a device", func(root string) error {
			dir := filepath.Join(PodsDir(root), "uid", "volumeDevices", "x~y")
			return errors.Join(os.MkdirAll(dir, 0o750), os.Symlink("/dev/none", filepath.Join(dir, "v")))
		}, Key{"uid", "x/y", "v"}, true},
		{"a file for a directory", func(root string) error {
			return errors.Join(os.MkdirAll(filepath.Join(PodsDir(root), "uid", "volumes"), 0o750), os.WriteFile(filepath.Join(PodsDir(root), "uid", "volumes", "x~y"), nil, 0o600))
		}, Key{"uid", "x/y", "v"}, true},
		{"no long name", func(root string) error { return os.MkdirAll(VolumePlace(root, Key{"uid", "x/y", "w"}), 0o750) }, Key{"uid", "x/y", long}, false},
		{"a long name", func(root string) error { return os.MkdirAll(VolumePlace(root, Key{"uid", "x/y", long}), 0o750) }, Key{"uid", "x/y", long}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := t.TempDir()
			must(t, tc.make(root))
			if back := isBack(root, tc.key); back != tc.back {
				t.Errorf("it is back: %v", back)
			}
		})
	}
}
