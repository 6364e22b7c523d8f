package rootdir

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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

// tombstones are the records of removed volumes that wait until the directories are synced.
type tombstones struct {
	rootDir string
	sync    func(*os.File) error // fsync(2)

	mu     sync.Mutex
	looks  int                    // for pods' directories, so far
	ripe   []buried               // whose pods' directories were seen to be gone
	enough int                    // of them, to sync for
	early  map[types.UID][]buried // the others; the last volume of a pod makes them ripe
	waits  int                    // how many those are
	crowd  int                    // of them, to look at each pod
}

// buried is a removed volume.
type buried struct {
	Key
	under string // its tombstone's key
	look  int    // after its directories had gone, for its pod's
	// last: its pod's directory had gone too, and only the directory of all pods is to be synced.
	// A directory of that name that is there again is another one.
	last bool
}

func newTombstones(rootDir string) *tombstones {
	return &tombstones{rootDir: rootDir, sync: syncDir, enough: maxTombstones, early: make(map[types.UID][]buried), crowd: maxEarly}
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
	b := buried{Key: key, look: r.tombstones.nextLook()}
	hasPod := HasPod(r.tombstones.rootDir, key.PodUID)
	if hasPod && isBack(r.tombstones.rootDir, key) {
		return r.Remove(key)
	}
	b.last = !hasPod
	return r.moveToTombstone(b, record)
}

func (t *tombstones) nextLook() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.looks++
	return t.looks
}

func (r Records) moveToTombstone(b buried, record *mountrecord.Record) error {
	tombstone := *record
	tombstone.Confirmed, tombstone.Detached = nil, nil
	line, err := mountrecord.Encode(&tombstone)
	if err != nil {
		return err
	}
	b.under = tombstonePrefix + rand.Text() + "/" + b.Key.String()
	if err := r.journal.Move(b.Key.String(), b.under, line); err != nil {
		return err
	}
	ripe, early := r.tombstones.add(b)
	r.forgetGone(ripe)
	r.thin(early)
	return nil
}

// add returns those that are ripe once they are enough, and the others once they are a crowd.
func (t *tombstones) add(b buried) (ripe []buried, early map[types.UID][]buried) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.last {
		t.ripe = append(t.ripe, ripened(t.takeBefore(b))...)
		t.ripe = append(t.ripe, b)
	} else {
		t.early[b.PodUID] = append(t.early[b.PodUID], b)
		t.waits++
	}
	if len(t.ripe) >= t.enough {
		ripe = t.takeRipe()
	}
	if t.waits > t.crowd {
		early = t.takeEarly()
	}
	return ripe, early
}

// takeBefore takes the volumes of a pod that had gone before a look found its directory gone. The
// pod may have come again, and a volume of it gone, while the other's record was written. It is
// called with the lock held.
func (t *tombstones) takeBefore(b buried) (before []buried) {
	var after []buried
	for _, other := range t.early[b.PodUID] {
		if other.look < b.look {
			before = append(before, other)
		} else {
			after = append(after, other)
		}
	}
	t.waits -= len(before)
	if t.early[b.PodUID] = after; len(after) == 0 {
		delete(t.early, b.PodUID)
	}
	return before
}

// ripened are volumes whose pod's directory has gone since.
func ripened(of []buried) []buried {
	for i := range of {
		of[i].last = true
	}
	return of
}

// takeRipe is called with the lock held.
func (t *tombstones) takeRipe() (all []buried) {
	all, t.ripe = t.ripe, nil
	return all
}

// takeEarly is called with the lock held.
func (t *tombstones) takeEarly() (all map[types.UID][]buried) {
	all, t.early, t.waits = t.early, make(map[types.UID][]buried), 0
	return all
}

// thin is [Records.forgetGone] for volumes of pods that have gone without a last volume of theirs.
// The others are kept as long as they are not too many.
func (r Records) thin(early map[types.UID][]buried) {
	if len(early) == 0 {
		return
	}
	var gone []buried
	stay := 0
	for pod, volumes := range early {
		if HasPod(r.tombstones.rootDir, pod) {
			stay += len(volumes)
			continue
		}
		gone = append(gone, ripened(volumes)...)
		delete(early, pod)
	}
	r.forgetGone(gone)
	for stay > maxEarly {
		var some []buried
		for pod, volumes := range early {
			if some = append(some, volumes...); len(some) >= maxTombstones {
				delete(early, pod)
				break
			}
			delete(early, pod)
		}
		stay -= len(some)
		if !r.forgetGone(some) {
			break // the disk would fail for the others, too
		}
	}
	r.tombstones.keepEarly(early)
}

func (t *tombstones) keepEarly(early map[types.UID][]buried) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for pod, volumes := range early {
		t.early[pod] = append(t.early[pod], volumes...)
		t.waits += len(volumes)
	}
	t.crowd = max(maxEarly, t.waits) + 4*maxTombstones // a look asks for each of their pods
}

// forgetGone sees to it that the directories of these volumes stay away, and forgets
// the volumes. It returns false if that cannot be synced: the records are kept for another time,
// since a record too many is harmless.
func (r Records) forgetGone(gone []buried) bool {
	if len(gone) == 0 {
		return true
	}
	if r.tombstones.syncPlaces(gone) != nil {
		r.tombstones.keep(gone)
		return false
	}
	r.tombstones.synced()
	under := make([]string, len(gone))
	for i, b := range gone {
		under[i] = b.under
	}
	_ = r.journal.Forget(under...) // else the next owner of the root does it
	return true
}

// keep has another try wait for more of them.
func (t *tombstones) keep(all []buried) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ripe = append(t.ripe, all...)
	t.enough = len(t.ripe) + maxTombstones
}

func (t *tombstones) synced() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.enough = maxTombstones
}

// forgetAllGone does so for all that wait.
func (r Records) forgetAllGone() {
	r.tombstones.mu.Lock()
	all := r.tombstones.takeRipe()
	for _, volumes := range r.tombstones.takeEarly() {
		all = append(all, volumes...)
	}
	r.tombstones.mu.Unlock()
	r.forgetGone(all)
}

// syncPlaces syncs, for each volume, the directories on the way to its own as far
// as they are there: missing ones were removed from the last one. All are opened
// before the first is synced, lest one go in between.
func (t *tombstones) syncPlaces(gone []buried) (err error) {
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
	back []journal.Entry // as records, of volumes that are there again
	gone []buried        // of volumes that are not
	rest []string        // their keys, of volumes that are, or have a newer record
}

// splitTombstones takes the tombstones out of the records.
func splitTombstones(rootDir string, held []journal.Entry) (live []journal.Entry, found foundTombstones) {
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
			found.rest = append(found.rest, entry.Key)
		case !HasPod(rootDir, key.PodUID), !isBack(rootDir, key):
			found.gone = append(found.gone, buried{Key: key, under: entry.Key})
		default:
			recorded[name] = true
			found.rest = append(found.rest, entry.Key)
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
// the rest of a removal. It asks no server that may be mounted there.
func isBack(rootDir string, key Key) bool {
	for _, kind := range volumeKinds() {
		plugin := filepath.Join(PodsDir(rootDir), string(key.PodUID), kind, layout.EscapeQualifiedName(key.Plugin))
		if isThere(plugin) && (isThere(plugin+"/"+key.Spec) || isThere(plugin+"/"+layout.DeletingPrefix+key.Spec)) {
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
	_ = r.journal.Forget(u.rest...)
}
