// Package store keeps images below a directory, for the pods that use them.
//
//	layers/<digest>/  layers/<digest>.json   each layer once, for all images that have it
//	images/<digest>/  images/<digest>.json   the tree of each image, of links to its layers
//	uses/<name>.json                         which volume of which pod shows which image
//	tmp/                                     what is being made
//
// A directory counts once its record is there, which is written after everything in the
// directory is on disk. So whatever ends a pull, and whenever, leaves nothing that is
// taken for complete, and the layers that were complete stay. A removal begins with the
// record. Another process may work in the same directory: users hold a shared flock(2) of
// it, removals an exclusive one. When nothing is left, the directory goes, too.
package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/image/internal/layers"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
)

// ErrDamaged says that a record cannot be read. Nothing is removed until it is gone.
const ErrDamaged volume.Cause = "a record of an image's use is damaged"

// Limits bound what the store takes and keeps.
type Limits struct {
	// Bytes and Entries are the most that one image may unpack to, Layers how many it may
	// have.
	Bytes, Entries int64
	Layers         int
	// Reserve is the part of the disk in percent that stays free.
	Reserve int64
	// UnusedBytes is how much may be kept of layers that no used image has.
	UnusedBytes int64
	// UnusedFor is for how long an image stays at least after its last use.
	UnusedFor time.Duration
}

// Store is the directory. Its zero value with Dir and Limits is ready. It must not be copied
// after first use, and is safe for concurrent use.
type Store struct {
	// Dir is the absolute path of the directory, which is made when it is needed.
	Dir    string
	Limits Limits
	// Mounted returns the directories that mounts of this machine show, or other strings
	// that end with their names.
	Mounted func() ([]string, error)

	locks   blockingcall.Group[string]
	pulling keylock.Map[string]
}

// Image is the record of an image.
type Image struct {
	Version int    `json:"version"`
	Digest  string `json:"digest"`
	Layers  []part `json:"layers"`
	// Names are the references by which it was pulled, and when.
	Names map[string]time.Time `json:"names"`
	// Grants name the secrets that gave access to it. [Everyone] needs none.
	Grants []string `json:"grants"`
	// LastUsed is the end of the last use.
	LastUsed time.Time `json:"lastUsed"`
	// Bytes is the size of all layers.
	Bytes int64 `json:"bytes"`
}

// Everyone is the grant of an image that needs no secret, or that the node itself has.
const Everyone = "*"

// part is a layer of an image.
type part struct {
	Key string `json:"key"`
	// Name is the path of the file that the layer is; empty: it is a tree.
	Name string `json:"name,omitempty"`
}

type layerRecord struct {
	Version int `json:"version"`
	layers.Layer
}

type useRecord struct {
	Version int    `json:"version"`
	Digest  string `json:"digest"`
	Ref     string `json:"ref"`
	PodUID  string `json:"podUID"`
	Volume  string `json:"volume"`
}

const version = 1

// Place is the directory with an image's tree.
func (s *Store) Place(digest string) string { return filepath.Join(s.Dir, "images", oci.Hex(digest)) }

func (s *Store) record(kind, name string) string {
	return filepath.Join(s.Dir, kind, name+".json")
}

// Lock keeps other processes and [Store.Collect] from removing anything until unlock.
func (s *Store) Lock(ctx context.Context) (unlock func(), err error) {
	var f *os.File
	err = s.locks.Do(ctx, "", func() (err error) {
		for err == nil && f == nil {
			if err = os.MkdirAll(s.Dir, 0o700); err == nil {
				f, err = s.flock(unix.LOCK_SH)
			}
		}
		if err == nil && ctx.Err() != nil { // nobody waits any more
			f.Close()
			err = context.Cause(ctx)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, dir := range kinds() {
		if err := os.Mkdir(filepath.Join(s.Dir, dir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			f.Close()
			return nil, err
		}
	}
	return func() { f.Close() }, nil
}

// kinds are the directories of the store.
func kinds() []string { return []string{"layers", "images", "uses", "tmp"} }

// flock locks the store's directory; nil: it is not there, or no more.
func (s *Store) flock(how int) (*os.File, error) {
	f, err := os.Open(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = eintr.Do(func() error { return unix.Flock(int(f.Fd()), how) })
	if err != nil {
		err = &fs.PathError{Op: "lock", Path: s.Dir, Err: err}
	}
	in := false
	if err == nil {
		in, err = durable.InPlace(f, s.Dir)
	}
	if err != nil || !in {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Find returns the image of a name or digest that was pulled last; false: there is none.
func (s *Store) Find(ref oci.Reference) (Image, bool, error) {
	if ref.Digest != "" {
		var i Image
		has, err := s.read("images", oci.Hex(ref.Digest), &i)
		return i, has && i.Digest == ref.Digest, err
	}
	all, err := s.images()
	if err != nil {
		return Image{}, false, err
	}
	name := ref.String()
	has := slices.DeleteFunc(all, func(i Image) bool { return i.Names[name].IsZero() })
	if len(has) == 0 {
		return Image{}, false, nil
	}
	return slices.MaxFunc(has, func(a, b Image) int { return a.Names[name].Compare(b.Names[name]) }), true, nil
}

// Granted reports whether one of the grants is one of the image's.
func (i Image) Granted(grants []string) bool {
	return slices.Contains(i.Grants, Everyone) || slices.ContainsFunc(grants, func(g string) bool { return slices.Contains(i.Grants, g) })
}

// images returns all complete ones. A record that cannot be read is of an image that is
// pulled again.
func (s *Store) images() ([]Image, error) {
	var all []Image
	err := s.each("images", func(name string) error {
		var i Image
		has, err := s.read("images", name, &i)
		if has && oci.Hex(i.Digest) == name {
			all = append(all, i)
		}
		return err
	})
	return all, err
}

// each calls f with the names of all records of a kind.
func (s *Store) each(kind string, f func(name string) error) error {
	entries, err := os.ReadDir(filepath.Join(s.Dir, kind))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if name, is := strings.CutSuffix(e.Name(), ".json"); is && err == nil && !durable.IsTemp(e.Name()) {
			err = f(name)
		}
	}
	return err
}

// read reads a record, and reports whether there is a complete one of this version.
func (s *Store) read(kind, name string, into any) (bool, error) {
	data, err := os.ReadFile(s.record(kind, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var v struct{ Version int }
	if json.Unmarshal(data, &v) != nil || v.Version != version || json.Unmarshal(data, into) != nil {
		return false, nil
	}
	return true, nil
}

func (s *Store) write(kind, name string, record any) error {
	data, err := json.Marshal(record)
	if err != nil {
		return err
	}
	return durable.WriteFile(s.record(kind, name), append(data, '\n'), 0o600)
}

// useName names the use of a volume, whatever characters its own name has.
func useName(podUID, name string) string {
	sum := sha256.Sum256([]byte(podUID + "\x00" + name))
	return hex.EncodeToString(sum[:16])
}

// Use records that a volume shows an image. The lock of [Store.Lock] must be held since the
// image was found or pulled.
func (s *Store) Use(image Image, ref, podUID, name string) error {
	return s.write("uses", useName(podUID, name), useRecord{Version: version, Digest: image.Digest, Ref: ref, PodUID: podUID, Volume: name})
}

// Used returns the digest of the image that a volume shows, and its reference with that
// digest; both are empty where there is no record.
func (s *Store) Used(podUID, name string) (digest, ref string, err error) {
	var u useRecord
	_, err = s.read("uses", useName(podUID, name), &u)
	return u.Digest, u.Ref, err
}

// UsedBy returns the references, with digests, that a pod's volumes show.
func (s *Store) UsedBy(podUID string) (map[string]string, error) {
	found := make(map[string]string)
	err := s.each("uses", func(name string) error {
		var u useRecord
		has, err := s.read("uses", name, &u)
		if has && u.PodUID == podUID {
			found[u.Volume] = u.Ref
		}
		return err
	})
	return found, err
}

// Release ends a use. It is idempotent.
func (s *Store) Release(ctx context.Context, podUID, name string) error {
	if _, err := os.Lstat(s.record("uses", useName(podUID, name))); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := s.Lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	digest, _, err := s.Used(podUID, name)
	if err != nil {
		return err
	}
	if err := s.touch(ctx, digest); err != nil {
		return err
	}
	return durable.Remove(s.record("uses", useName(podUID, name)))
}

// touch notes that an image is used until now.
func (s *Store) touch(ctx context.Context, digest string) error {
	if !oci.IsDigest(digest) {
		return nil
	}
	return s.change(ctx, digest, func(i *Image) { i.LastUsed = time.Now() })
}

// change changes the record of an image, if there is one.
func (s *Store) change(ctx context.Context, digest string, f func(*Image)) error {
	unlock, err := s.pulling.Lock(ctx, "image "+digest)
	if err != nil {
		return err
	}
	defer unlock()
	var i Image
	has, err := s.read("images", oci.Hex(digest), &i)
	if err != nil || !has {
		return err
	}
	f(&i)
	return s.write("images", oci.Hex(digest), i)
}

// Name notes that an image was pulled by a reference, by who has a grant; empty: no grant.
func (s *Store) Name(ctx context.Context, image Image, ref, grant string) error {
	return s.change(ctx, image.Digest, func(i *Image) {
		if i.Names == nil {
			i.Names = make(map[string]time.Time)
		}
		i.Names[ref] = time.Now()
		if grant != "" && !slices.Contains(i.Grants, grant) {
			i.Grants = append(i.Grants, grant)
		}
		boundNames(i)
	})
}

const maxNames = 100

// boundNames forgets the oldest names and grants of an image that has too many.
func boundNames(i *Image) {
	i.Grants = i.Grants[max(0, len(i.Grants)-maxNames):]
	if len(i.Names) <= maxNames {
		return
	}
	names := slices.SortedFunc(maps.Keys(i.Names), func(a, b string) int {
		return cmp.Or(i.Names[a].Compare(i.Names[b]), strings.Compare(a, b))
	})
	for _, name := range names[:len(names)-maxNames] {
		delete(i.Names, name)
	}
}

func tooLarge(format string, args ...any) error {
	return fmt.Errorf("%w: %s", layers.ErrTooLarge, fmt.Sprintf(format, args...))
}
