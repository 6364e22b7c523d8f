package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/filelock"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/volume/plugins/image/internal/layers"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
)

// Pull makes an image complete: it reads the layers that are missing, as many at a time as
// there are processors, and merges them. The lock of [Store.Lock] must be held. Pulls of one
// image from one repository do the work once.
func (s *Store) Pull(ctx context.Context, from oci.Fetcher, ref oci.Reference, image oci.Image) (Image, error) {
	if len(image.Layers) > s.Limits.Layers {
		return Image{}, tooLarge("it has %d layers, more than %d", len(image.Layers), s.Limits.Layers)
	}
	sum := int64(0)
	for _, l := range image.Layers {
		if sum += l.Size; sum > s.Limits.Bytes || l.Size > s.Limits.Bytes {
			return Image{}, tooLarge("its layers have more than %d bytes", s.Limits.Bytes)
		}
	}
	parts, err := s.fetch(ctx, from, ref, image.Layers)
	if err != nil {
		return Image{}, err
	}
	return s.merge(ctx, image, parts)
}

func tooLarge(format string, args ...any) error {
	return fmt.Errorf("%w: %s", layers.ErrTooLarge, fmt.Sprintf(format, args...))
}

// fetch completes all layers.
func (s *Store) fetch(ctx context.Context, from oci.Fetcher, ref oci.Reference, all []oci.Layer) ([]layers.Part, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	budget := &layers.Budget{Bytes: s.Limits.Bytes, Entries: s.Limits.Entries, Reserve: s.Limits.Reserve}
	parts := make([]layers.Part, len(all))
	next := make(chan int, len(all))
	for i := range all {
		next <- i
	}
	close(next)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(all)) {
		workers.Go(func() {
			for i := range next {
				if ctx.Err() != nil {
					return
				}
				l, err := s.layer(ctx, from, ref, all[i], budget)
				if err != nil {
					cancel(fmt.Errorf("layer %d (%s): %w", i+1, all[i].Digest, err))
					return
				}
				parts[i] = layers.Part{Layer: l, Dir: filepath.Join(s.Dir, "layers", keyOf(all[i])), Name: all[i].File}
			}
		})
	}
	workers.Wait()
	return parts, context.Cause(ctx)
}

// keyOf names a layer's directory: the same bytes can be a tar to one image, and a file to
// another.
func keyOf(l oci.Layer) string {
	if l.File != "" {
		return oci.Hex(l.Digest) + "-file"
	}
	return oci.Hex(l.Digest)
}

// layer returns a layer that is complete. Pods that need it from one repository wait for one
// another. They do not wait for another repository, which may answer more slowly.
func (s *Store) layer(ctx context.Context, from oci.Fetcher, ref oci.Reference, l oci.Layer, budget *layers.Budget) (layers.Layer, error) {
	key := keyOf(l)
	unlock, err := s.pulling.Lock(ctx, "layer "+ref.Name()+" "+key)
	if err != nil {
		return layers.Layer{}, err
	}
	defer unlock()
	has, known, err := s.knownLayer(key, l)
	if err == nil && known {
		known, err = s.mayTake(has, key, ref.Name())
	}
	if err != nil || known {
		if err == nil {
			err = budget.Count(has.Layer)
		}
		return has.Layer, err
	}
	var made layers.Layer
	err = s.make("layers", key, func(dir *os.File) error {
		body, err := from.Blob(ctx, ref, l.Descriptor)
		if err != nil {
			return err
		}
		defer body.Close()
		made, err = layers.Unpack(ctx, dir, body, l, budget)
		return err
	}, func() (any, error) {
		r, _, err := s.knownLayer(key, l)
		from := append(r.From, ref.Name())
		return layerRecord{version, made, from[max(0, len(from)-maxNames):]}, err
	})
	return made, err
}

// mayTake reports whether a pull may have a layer without reading it again: its repository has
// sent it before, or everyone may see it. Else who knows the digest of another's layer, and has
// a registry to name it, would come to its files.
func (s *Store) mayTake(r layerRecord, key, repository string) (bool, error) {
	if slices.Contains(r.From, repository) {
		return true, nil
	}
	all, err := s.images()
	return slices.ContainsFunc(all, func(i Image) bool { return i.Granted(nil) && keysOf(i)[key] }), err
}

func (s *Store) knownLayer(key string, l oci.Layer) (layerRecord, bool, error) {
	var r layerRecord
	has, err := s.read("layers", key, &r)
	if err != nil || !has || r.Digest != l.Digest {
		return layerRecord{}, false, err
	}
	if l.DiffID != "" && l.DiffID != r.DiffID {
		return r, false, fmt.Errorf("%w: unpacked, it has %s, and the image says %s", oci.ErrDigestMismatch, r.DiffID, l.DiffID)
	}
	return r, true, nil
}

// make makes a directory of a kind by fill, and its record once all of that is on disk.
func (s *Store) make(kind, name string, fill func(dir *os.File) error, record func() (any, error)) error {
	temp, err := os.MkdirTemp(filepath.Join(s.Dir, "tmp"), kind+"-")
	if err != nil {
		return err
	}
	err = s.fill(temp, fill)
	if err == nil {
		err = s.publish(temp, kind, name, record)
	}
	for _, left := range []string{temp, temp + aside} {
		err = errors.Join(err, removetree.Remove(context.Background(), filepath.Dir(left), filepath.Base(left)))
	}
	return err
}

// aside is what comes after the name of a directory in tmp that was in its place.
const aside = ".old"

// publish puts a finished directory in its place, unless another process, or a pull from
// another repository, has made the same, and writes the record. Both is one step to all others:
// a directory without a record is a leftover then, and not one that is about to have it.
func (s *Store) publish(temp, kind, name string, record func() (any, error)) error {
	lock, err := filelock.Open(filepath.Join(s.Dir, kind), unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer filelock.Close(lock)
	complete, err := s.read(kind, name, &struct{}{})
	if err == nil && !complete {
		err = put(temp, filepath.Join(s.Dir, kind, name))
	}
	if err != nil {
		return err
	}
	r, err := record()
	if err != nil {
		return err
	}
	return s.write(kind, name, r)
}

func (s *Store) fill(temp string, fill func(dir *os.File) error) error {
	dir, err := os.Open(temp)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := fill(dir); err != nil {
		return err
	}
	if err := eintr.Do(func() error { return unix.Syncfs(int(dir.Fd())) }); err != nil {
		return &fs.PathError{Op: "syncfs", Path: temp, Err: err}
	}
	return nil
}

// put moves a finished directory to its place, and what is there aside.
func put(temp, place string) error {
	err := rename(temp, place)
	if errors.Is(err, fs.ErrExist) {
		if err = rename(place, temp+aside); err == nil {
			err = rename(temp, place)
		}
	}
	return err
}

func rename(from, to string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}

// merge makes the tree of an image whose layers are complete.
func (s *Store) merge(ctx context.Context, image oci.Image, parts []layers.Part) (Image, error) {
	unlock, err := s.pulling.Lock(ctx, "image "+image.Digest)
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	var known Image
	has, err := s.read("images", oci.Hex(image.Digest), &known)
	if err != nil || has && known.Digest == image.Digest {
		return known, err
	}
	made := Image{Version: version, Digest: image.Digest, LastUsed: time.Now()}
	for i, p := range parts {
		made.Layers = append(made.Layers, part{Key: keyOf(image.Layers[i]), Name: p.Name})
		made.Bytes += p.Bytes
	}
	err = s.make("images", oci.Hex(image.Digest), func(dir *os.File) (err error) {
		budget := &layers.Budget{Bytes: s.Limits.Bytes, Entries: s.Limits.Entries, Reserve: s.Limits.Reserve}
		made.Directories, err = layers.Merge(ctx, dir, parts, budget)
		return err
	}, func() (any, error) {
		has, err := s.read("images", oci.Hex(image.Digest), &known)
		if has && known.Digest == image.Digest {
			made = known // with its names and grants
		}
		return made, err
	})
	return made, err
}

// sweep removes what crashed processes have left. The caller has the exclusive lock.
func (s *Store) sweep(ctx context.Context) error {
	tmp := filepath.Join(s.Dir, "tmp")
	entries, err := os.ReadDir(tmp)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for _, e := range entries {
		err = errors.Join(err, removetree.Remove(ctx, tmp, e.Name()))
	}
	for _, kind := range []string{"layers", "images", "uses"} {
		_, swept := durable.Sweep(filepath.Join(s.Dir, kind))
		err = errors.Join(err, swept)
	}
	return err
}
