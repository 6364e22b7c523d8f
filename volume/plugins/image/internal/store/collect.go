package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/filelock"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/volume/plugins/image/internal/layers"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
)

// Collect removes what crashed processes have left, and images that no volume shows, until
// the rest of the unused ones fits into the budget: those first whose last use is longest
// ago. Images that were used a short time ago stay, and so does everything where a record of
// a use cannot be read. While a pull goes on, also in another process, it does nothing.
//
// It returns when more can be removed, though nothing happens until then; zero: no more can.
func (s *Store) Collect(ctx context.Context) (next time.Time, err error) {
	lock, err := s.flock(unix.LOCK_EX | unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return time.Now().Add(busyPause), nil
	}
	if err != nil || lock == nil {
		return time.Time{}, err
	}
	defer filelock.Close(lock)
	if err := s.sweep(ctx); err != nil {
		return time.Time{}, err
	}
	used, err := s.inUse()
	if err != nil {
		return time.Time{}, err
	}
	all, err := s.images()
	if err != nil {
		return time.Time{}, err
	}
	sizes, err := s.layers()
	if err != nil {
		return time.Time{}, err
	}
	if err := s.incomplete(ctx, all, sizes, used); err != nil {
		return time.Time{}, err
	}
	if next, err = s.shrink(ctx, all, sizes, used); err != nil {
		return time.Time{}, err
	}
	return next, s.removeEmpty()
}

// busyPause is when to look again whether a pull still goes on.
const busyPause = time.Minute

// removeEmpty removes the store's directories, and the one above, if there is nothing in
// them.
func (s *Store) removeEmpty() error {
	for _, dir := range kinds() {
		err := os.Remove(filepath.Join(s.Dir, dir))
		if errors.Is(err, unix.ENOTEMPTY) {
			return nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, dir := range []string{s.Dir, filepath.Dir(s.Dir)} {
		err := os.Remove(dir)
		if err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

// inUse returns the digests of images that volumes show, by the uses' records and, in case one
// was lost, by the mounts.
func (s *Store) inUse() (map[string]bool, error) {
	used := make(map[string]bool)
	err := s.each("uses", func(name string) error {
		var u useRecord
		has, err := s.read("uses", name, &u)
		if err == nil && (!has || !oci.IsDigest(u.Digest)) {
			return fmt.Errorf("%w: %s; no image is removed as long as it is there: remove it once no pod uses an image volume", ErrDamaged, s.record("uses", name))
		}
		used[u.Digest] = true
		return err
	})
	if err != nil {
		return nil, err
	}
	mounts, err := s.Mounted()
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		for _, below := range strings.Split(m, "/images/")[1:] { // a subPath of it may have another one
			name, _, _ := strings.Cut(below, "/")
			used["sha256:"+name] = true
		}
	}
	return used, nil
}

// layers returns all complete ones by their keys.
func (s *Store) layers() (map[string]layers.Layer, error) {
	all := make(map[string]layers.Layer)
	err := s.each("layers", func(name string) error {
		var r layerRecord
		has, err := s.read("layers", name, &r)
		if has {
			all[name] = r.Layer
		}
		return err
	})
	return all, err
}

// incomplete removes directories without a record, and records that cannot be read.
func (s *Store) incomplete(ctx context.Context, images []Image, complete map[string]layers.Layer, used map[string]bool) error {
	known := map[string]map[string]bool{"layers": {}, "images": {}}
	for key := range complete {
		known["layers"][key] = true
	}
	for _, i := range images {
		known["images"][oci.Hex(i.Digest)] = true
	}
	for digest := range used {
		known["images"][oci.Hex(digest)] = true
	}
	for kind, names := range known {
		entries, err := os.ReadDir(filepath.Join(s.Dir, kind))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if name := strings.TrimSuffix(e.Name(), ".json"); !names[name] {
				if err := s.remove(ctx, kind, name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// remove removes a directory and first its record, so that it never counts while it is in
// pieces.
func (s *Store) remove(ctx context.Context, kind, name string) error {
	if err := durable.Remove(s.record(kind, name)); err != nil {
		return err
	}
	return removetree.Remove(ctx, filepath.Join(s.Dir, kind), name)
}

// directoryBytes is what a directory takes on disk, about.
const directoryBytes = 4096

// shrink removes unused images until the unused layers, and the trees of unused images, fit into
// the budget. It returns when the first of those is old enough that were used too short a time
// ago.
func (s *Store) shrink(ctx context.Context, all []Image, sizes map[string]layers.Layer, used map[string]bool) (next time.Time, err error) {
	holders := make(map[string]int, len(sizes)) // images by layer
	needed := make(map[string]bool)
	for _, i := range all {
		for key := range keysOf(i) {
			holders[key]++
			needed[key] = needed[key] || used[i.Digest]
		}
	}
	unused := unusedTrees(all, used)
	for key, l := range sizes {
		if !needed[key] {
			unused += l.Bytes
		}
	}
	fits := func() bool { return unused <= s.Limits.UnusedBytes && s.Limits.UnusedBytes > 0 }
	drop := func(key string) error {
		unused -= sizes[key].Bytes
		return s.remove(ctx, "layers", key)
	}
	isRecent := func(used time.Time) bool {
		due := used.Add(s.Limits.UnusedFor)
		recent := s.isRecent(used)
		if recent && (next.IsZero() || due.Before(next)) {
			next = due
		}
		return recent
	}
	for key := range sizes { // of pulls that came to no end
		if holders[key] == 0 && !fits() && !isRecent(s.completedAt(key)) {
			if err := drop(key); err != nil {
				return next, err
			}
		}
	}
	slices.SortFunc(all, func(a, b Image) int {
		return cmp.Or(a.LastUsed.Compare(b.LastUsed), strings.Compare(a.Digest, b.Digest))
	})
	for _, i := range all {
		if fits() {
			break
		}
		if used[i.Digest] || isRecent(i.LastUsed) {
			continue
		}
		if err := s.remove(ctx, "images", oci.Hex(i.Digest)); err != nil {
			return next, err
		}
		unused -= i.Directories * directoryBytes
		for key := range keysOf(i) {
			if holders[key]--; holders[key] == 0 {
				if err := drop(key); err != nil {
					return next, err
				}
			}
		}
	}
	return next, nil
}

func unusedTrees(all []Image, used map[string]bool) (bytes int64) {
	for _, i := range all {
		if !used[i.Digest] {
			bytes += i.Directories * directoryBytes
		}
	}
	return bytes
}

func keysOf(i Image) map[string]bool {
	keys := make(map[string]bool, len(i.Layers))
	for _, p := range i.Layers {
		keys[p.Key] = true
	}
	return keys
}

// completedAt is when a layer was complete; one without its record counts as completed just now.
func (s *Store) completedAt(key string) time.Time {
	info, err := os.Stat(s.record("layers", key))
	if err != nil {
		return time.Now()
	}
	return info.ModTime()
}

// isRecent reports whether something was used too short a time ago to be removed. A time that
// is yet to come is of a clock that was wrong: it does not keep it until then.
func (s *Store) isRecent(used time.Time) bool {
	age := time.Since(used)
	return age >= 0 && age < s.Limits.UnusedFor
}
