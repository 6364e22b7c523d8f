package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/eintr"
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
	if err != nil || known {
		if err == nil {
			err = budget.Count(has)
		}
		return has, err
	}
	var made layers.Layer
	return made, s.make("layers", key, func(dir *os.File) error {
		body, err := from.Blob(ctx, ref, l.Descriptor)
		if err != nil {
			return err
		}
		defer body.Close()
		made, err = layers.Unpack(ctx, dir, body, l, budget)
		return err
	}, func() any { return layerRecord{version, made} })
}

func (s *Store) knownLayer(key string, l oci.Layer) (layers.Layer, bool, error) {
	var r layerRecord
	has, err := s.read("layers", key, &r)
	if err != nil || !has || r.Digest != l.Digest {
		return r.Layer, false, err
	}
	if l.DiffID != "" && l.DiffID != r.DiffID {
		return r.Layer, false, fmt.Errorf("%w: unpacked, it has %s, and the image says %s", oci.ErrDigestMismatch, r.DiffID, l.DiffID)
	}
	return r.Layer, true, nil
}

// make makes a directory of a kind by fill, and its record once all of that is on disk.
func (s *Store) make(kind, name string, fill func(dir *os.File) error, record func() any) error {
	temp, err := os.MkdirTemp(filepath.Join(s.Dir, "tmp"), kind+"-")
	if err != nil {
		return err
	}
	err = s.fill(temp, fill)
	if err == nil {
		err = s.put(temp, kind, name)
	}
	if err == nil {
		err = s.write(kind, name, record())
	}
	if err != nil {
		clean := removetree.Remove(context.Background(), filepath.Dir(temp), filepath.Base(temp))
		return errors.Join(err, clean)
	}
	return nil
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

// put moves a finished directory to its place. What is there has no record, or another
// process has made the same.
func (s *Store) put(temp, kind, name string) error {
	place := filepath.Join(s.Dir, kind, name)
	for {
		err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, place, unix.RENAME_NOREPLACE)
		if !errors.Is(err, fs.ErrExist) {
			if err != nil {
				return &os.LinkError{Op: "rename", Old: temp, New: place, Err: err}
			}
			return nil
		}
		complete, err := s.read(kind, name, &struct{}{})
		if err != nil {
			return err
		}
		if complete {
			return removetree.Remove(context.Background(), filepath.Dir(temp), filepath.Base(temp))
		}
		old, err := os.MkdirTemp(filepath.Join(s.Dir, "tmp"), "old-")
		if err != nil {
			return err
		}
		if err := os.Rename(place, filepath.Join(old, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := removetree.Remove(context.Background(), filepath.Dir(old), filepath.Base(old)); err != nil {
			return err
		}
	}
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
	return made, s.make("images", oci.Hex(image.Digest), func(dir *os.File) error {
		return layers.Merge(ctx, dir, parts)
	}, func() any { return made })
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
