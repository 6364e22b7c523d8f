package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"github.com/podvol/podvol/volume"
)

// Layout is a directory with images, as the OCI image layout specification says. It is a
// [Fetcher] that needs no network.
type Layout struct{ Dir string }

// The annotations by which an index names an image. The first may be a tag alone, of
// which the repository is not known; such an image is found by its digest.
const (
	refName   = "org.opencontainers.image.ref.name"
	imageName = "io.containerd.image.name"
)

// Manifest implements [Fetcher].
func (l Layout) Manifest(ctx context.Context, ref Reference) ([]byte, error) {
	if ref.Digest != "" {
		return l.read("blobs/sha256/" + Hex(ref.Digest))
	}
	index, err := l.read("index.json")
	if err != nil {
		return nil, err
	}
	var d document
	if err := json.Unmarshal(index, &d); err != nil {
		return nil, malformed("%s: %v", l.Dir, err)
	}
	for _, m := range d.Manifests {
		for _, name := range []string{m.Annotations[imageName], m.Annotations[refName]} {
			is, err := Parse(name)
			if err == nil && is == ref && m.check() == nil {
				return l.read("blobs/sha256/" + Hex(m.Digest))
			}
		}
	}
	return nil, fmt.Errorf("%s in %s: %w", ref, l.Dir, volume.ErrNotFound)
}

// Blob implements [Fetcher].
func (l Layout) Blob(_ context.Context, _ Reference, blob Descriptor) (io.ReadCloser, error) {
	return l.open(path.Join("blobs/sha256", Hex(blob.Digest)))
}

func (l Layout) open(name string) (*os.File, error) {
	root, err := os.OpenRoot(l.Dir)
	if err == nil {
		defer root.Close()
		var f *os.File
		if f, err = root.Open(name); err == nil {
			return f, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s in %s: %w", name, l.Dir, volume.ErrNotFound)
	}
	return nil, err
}

func (l Layout) read(name string) ([]byte, error) {
	f, err := l.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, MaxManifest+1))
	if err == nil && len(body) > MaxManifest {
		err = malformed("%s has more than %d bytes", name, MaxManifest)
	}
	return body, err
}
