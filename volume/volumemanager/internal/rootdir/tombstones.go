package rootdir

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/journal"
	"github.com/podvol/podvol/util/openat"
	"github.com/podvol/podvol/volume/layout"
	"github.com/podvol/podvol/volume/mountrecord"
)

// When a volume has been torn down, its directories are removed, but not for sure
// on disk: after a power cut they may be there again. So its record is not
// deleted but becomes a tombstone, at the cost of the one sync that the deletion would take:
// it is kept under another key until the directories are known to be gone for
// good. The directories of many volumes are synced together. A process that opens
// the records meanwhile ignores a tombstone. But if there is something again
// at its volume's place, it is that volume's record as before, and unconfirmed.

// tombstonePrefix begins the keys of tombstones, on disk too. A text of its own follows, so
// that no two are the same, and the volume's key.
const tombstonePrefix = "buried/"

const (
	// maxTombstones is how many are kept before the directories are synced: many enough
	// that it costs a teardown next to nothing.
	maxTombstones = 64
	// maxEarly is how many more are kept of pods that have other volumes yet: once those have
	// gone too, one directory is synced for all pods instead of some for each.
	maxEarly = 16 * maxTombstones
)

// tombstones are the records of removed volumes that wait until the directories are synced, by their keys.
type tombstones struct {
	rootDir string
	sync    func(*os.File) error // fsync(2)

	mu      sync.Mutex
	waiting map[string]buried
	enough  int // of them, to look which can go
}

// buried is a removed volume.
type buried struct {
	Key
	// last: its pod's directory had gone too, and only the directory of all pods is to be synced.
	// A directory of that name that is there again is another one.
	last bool
}

func newTombstones(rootDir string) *tombstones {
	return &tombstones{rootDir: rootDir, sync: syncDir, waiting: make(map[string]buried), enough: maxTombstones}
}

// SyncDirsBy has the directories around removed volumes synced by f, in tests.
func (r Records) SyncDirsBy(f func(dir *os.File, sync func(*os.File) error) error) {
	sync := r.tombstones.sync
	r.tombstones.sync = func(dir *os.File) error { return f(dir, sync) }
}

func syncDir(dir *os.File) error {
	err := eintr.Do(func() error { return unix.Fsync(int(dir.Fd())) })
	if errors.Is(err, unix.EINVAL) { // a file system without it loses nothing that it could keep
		return nil
	}
	return err
}

// Release takes the record of a volume away that has been torn down, or was never
// set up, and returns when that will survive a crash. Another file at its place
// is not podvol's, and must not be taken for it later.
func (r Records) Release(key Key, record *mountrecord.Record) error {
	hasPod := HasPod(r.tombstones.rootDir, key.PodUID)
	if hasPod && isBack(r.tombstones.rootDir, key) {
		return r.Remove(key)
	}
	return r.moveToTombstone(buried{key, !hasPod}, record)
}

func (r Records) moveToTombstone(key buried, record *mountrecord.Record) error {
	tombstone := *record
	tombstone.Confirmed, tombstone.Detached = nil, nil
	line, err := mountrecord.Encode(&tombstone)
	if err != nil {
		return err
	}
	under := tombstonePrefix + rand.Text() + "/" + key.String()
	if err := r.journal.Move(key.String(), under, line); err != nil {
		return err
	}
	if full := r.tombstones.add(under, key); full != nil {
		r.forgetRipe(full)
	}
	return nil
}

// forgetRipe is [Records.forgetGone] for the volumes of pods that have gone. The others are kept
// as long as they are not too many.
func (r Records) forgetRipe(full map[string]buried) {
	early := make(map[string]buried)
	there := make(map[types.UID]bool)
	for under, key := range full {
		if key.last {
			continue
		}
		is, known := there[key.PodUID]
		if !known {
			is = HasPod(r.tombstones.rootDir, key.PodUID)
			there[key.PodUID] = is
		}
		if is {
			early[under] = key
			delete(full, under)
		}
	}
	_ = r.forgetGone(full)
	for len(early) > maxEarly {
		some := make(map[string]buried, maxTombstones)
		for under, key := range early {
			if some[under] = key; len(some) == maxTombstones {
				break
			}
		}
		maps.DeleteFunc(early, func(under string, _ buried) bool { _, is := some[under]; return is })
		if !r.forgetGone(some) {
			break // the disk would fail for the others, too
		}
	}
	r.tombstones.keep(early)
}

// add returns all that are waiting once they are enough.
func (t *tombstones) add(under string, key buried) (full map[string]buried) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting[under] = key
	if len(t.waiting) < t.enough {
		return nil
	}
	return t.take()
}

// take is called with the lock held.
func (t *tombstones) take() map[string]buried {
	all := t.waiting
	t.waiting = make(map[string]buried)
	return all
}

// forgetGone sees to it that the directories of these volumes stay away, and forgets
// the volumes. It returns false if that cannot be synced: the records are kept for another time,
// since a record too many is harmless.
func (r Records) forgetGone(gone map[string]buried) bool {
	if len(gone) == 0 {
		return true
	}
	if r.tombstones.syncPlaces(gone) != nil {
		r.tombstones.keep(gone)
		return false
	}
	_ = r.journal.Forget(slices.Collect(maps.Keys(gone))...) // else the next owner of the root does it
	return true
}

func (t *tombstones) keep(all map[string]buried) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.Copy(t.waiting, all)
	// A look asks for each of their pods. A tear-down that looks syncs what has become too many.
	t.enough = len(t.waiting) + min(max(maxTombstones, len(t.waiting)/2), 4*maxTombstones)
}

// forgetAllGone does so for all that wait.
func (r Records) forgetAllGone() {
	r.tombstones.mu.Lock()
	all := r.tombstones.take()
	r.tombstones.mu.Unlock()
	r.forgetGone(all)
}

// syncPlaces syncs, for each volume, the directories on the way to its own as far
// as they are there: missing ones were removed from the last one. All are opened
// before the first is synced, lest one go in between.
func (t *tombstones) syncPlaces(gone map[string]buried) (err error) {
	dirs := make(map[string]*os.File)
	defer func() {
		for _, dir := range dirs {
			if dir != nil {
				dir.Close()
			}
		}
	}()
	pods := PodsDir(t.rootDir)
	for _, volume := range gone {
		for _, way := range volume.ways() {
			if err := openWay(dirs, pods, way...); err != nil {
				return err
			}
		}
	}
	for _, dir := range dirs {
		if dir == nil {
			continue
		}
		if err := t.sync(dir); err != nil {
			return err
		}
	}
	return nil
}

// ways are the names of the directories around the volume, below that of all pods.
func (b buried) ways() (ways [][]string) {
	if b.last {
		return [][]string{nil}
	}
	for _, kind := range volumeKinds() {
		ways = append(ways, []string{string(b.PodUID), kind, layout.EscapeQualifiedName(b.Plugin)})
	}
	return ways
}

func volumeKinds() []string { return []string{"volumes", "volumeDevices"} }

// openWay opens one directory below the other until one is missing, which has nil
// in dirs.
func openWay(dirs map[string]*os.File, path string, names ...string) error {
	for {
		dir, known := dirs[path]
		if !known {
			opened, err := openat.Followed(path)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			dir, dirs[path] = opened, opened
		}
		if dir == nil || len(names) == 0 {
			return nil
		}
		path, names = filepath.Join(path, names[0]), names[1:]
	}
}

// foundTombstones are the tombstones of an earlier owner, judged by their volumes' places.
type foundTombstones struct {
	back []journal.Entry   // as records, of volumes that are there again
	gone map[string]buried // of volumes that are not
	rest map[string]Key    // of volumes that are, or have a newer record
}

// splitTombstones takes the tombstones out of the records.
func splitTombstones(rootDir string, held []journal.Entry) (live []journal.Entry, found foundTombstones) {
	found.gone, found.rest = make(map[string]buried), make(map[string]Key)
	recorded := make(map[string]bool)
	for _, entry := range held {
		if _, _, ok := parseTombstone(entry.Key); !ok {
			live = append(live, entry)
			recorded[entry.Key] = true
		}
	}
	for _, entry := range held {
		name, key, ok := parseTombstone(entry.Key)
		switch {
		case !ok:
		case recorded[name]:
			found.rest[entry.Key] = key
		case !HasPod(rootDir, key.PodUID), !isBack(rootDir, key):
			found.gone[entry.Key] = buried{Key: key}
		default:
			recorded[name] = true
			found.rest[entry.Key] = key
			found.back = append(found.back, journal.Entry{Key: name, Value: json.RawMessage(entry.Value)})
		}
	}
	return live, found
}

// parseTombstone returns the key of a tombstone's volume.
func parseTombstone(under string) (name string, key Key, ok bool) {
	rest, ok := strings.CutPrefix(under, tombstonePrefix)
	if !ok {
		return "", Key{}, false
	}
	_, name, _ = strings.Cut(rest, "/")
	key, ok = ParseKey(name)
	return name, key, ok
}

// isBack reports whether there is, or may be, something at a volume's place, or
// the rest of a removal. It touches nothing but the directories around.
func isBack(rootDir string, key Key) bool {
	for _, kind := range volumeKinds() {
		plugin := filepath.Join(PodsDir(rootDir), string(key.PodUID), kind, layout.EscapeQualifiedName(key.Plugin))
		if gone, err := areGone(plugin, key.Spec, layout.DeletingPrefix+key.Spec); err != nil || !gone {
			return true
		}
	}
	return false
}

// recover finishes the removals of an earlier owner: volumes that are there again get
// their records back; of the others, empty directories that may be left are removed.
func (u foundTombstones) recover(r Records) {
	for _, entry := range u.back {
		if r.journal.Put(entry.Key, entry.Value) != nil {
			return // as on a full disk; they are kept
		}
	}
	pods := make(map[types.UID]bool)
	for _, key := range u.gone {
		if !pods[key.PodUID] {
			pods[key.PodUID] = true
			_ = removeEmptyPod(r.tombstones.rootDir, key.PodUID, "", nil) // what stays is empty
		}
	}
	r.forgetGone(u.gone)
	_ = r.journal.Forget(slices.Collect(maps.Keys(u.rest))...)
}
