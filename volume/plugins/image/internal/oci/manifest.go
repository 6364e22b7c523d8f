package oci

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/podvol/podvol/volume"
)

// MaxManifest bounds each manifest, index and configuration, in bytes.
const MaxManifest = 4 << 20

// Causes of refusals.
const (
	ErrDigestMismatch volume.Cause = "what was received is not what its digest says"
	ErrNoPlatform     volume.Cause = "the image is not made for this platform"
	ErrMalformed      volume.Cause = "the image is malformed"
)

// Fetcher reads images from one place. It need not check what it reads.
type Fetcher interface {
	// Manifest returns the manifest or index that a reference names. An image that is not
	// there matches [volume.ErrNotFound].
	Manifest(ctx context.Context, ref Reference) ([]byte, error)
	// Blob returns the bytes of a blob.
	Blob(ctx context.Context, ref Reference, blob Descriptor) (io.ReadCloser, error)
}

// Descriptor is a piece of an image.
type Descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations"`
	Platform    *Platform         `json:"platform"`
}

// Platform is an operating system and a processor.
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant"`
}

// Layer is one layer of an image.
type Layer struct {
	Descriptor
	// DiffID is the digest of the uncompressed tar; empty: the image does not say.
	DiffID string
	// File is the path of the one file that the layer is; empty: it is a tar.
	File string
}

// Image is an image for one platform.
type Image struct {
	// Digest is the digest of the manifest or index that the reference named.
	Digest string
	Layers []Layer
}

// document is a manifest or an index.
type document struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []Descriptor `json:"manifests"`
	Config        Descriptor   `json:"config"`
	Layers        []Descriptor `json:"layers"`
}

// Resolve reads what a reference names, up to its layers. Of an index it takes the image
// for the platform.
func Resolve(ctx context.Context, from Fetcher, ref Reference, on Platform) (Image, error) {
	d, digest, err := read(ctx, from, ref)
	if err != nil {
		return Image{}, err
	}
	image := Image{Digest: digest}
	if d.Manifests != nil {
		chosen, err := choose(d.Manifests, on)
		if err != nil {
			return Image{}, err
		}
		if d, _, err = read(ctx, from, ref.At(chosen)); err != nil {
			return Image{}, err
		}
	}
	if d.Manifests != nil {
		return Image{}, malformed("its index leads to another index")
	}
	image.Layers, err = layers(ctx, from, ref, d)
	return image, err
}

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// read returns a manifest or index, and its digest, which it has checked.
func read(ctx context.Context, from Fetcher, ref Reference) (document, string, error) {
	var d document
	body, err := from.Manifest(ctx, ref)
	if err != nil {
		return d, "", err
	}
	sum := sha256.Sum256(body)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	if ref.Digest != "" && digest != ref.Digest {
		return d, "", fmt.Errorf("manifest %s: %w: it has %s", ref.Digest, ErrDigestMismatch, digest)
	}
	if err := json.Unmarshal(body, &d); err != nil {
		return d, "", malformed("manifest %s: %v", digest, err)
	}
	if d.SchemaVersion == 1 {
		return d, "", malformed("it is of Docker's old format (schema 1); push it again by a current tool")
	}
	for _, part := range slices.Concat(d.Manifests, d.Layers) {
		if err := part.check(); err != nil {
			return d, "", err
		}
	}
	return d, digest, nil
}

func (d Descriptor) check() error {
	switch {
	case !IsDigest(d.Digest):
		return malformed("%.80q is no SHA-256 digest", d.Digest)
	case d.Size < 0:
		return malformed("%s has a size of %d", d.Digest, d.Size)
	}
	return nil
}

// choose returns the digest of the image for the platform: the first of the same
// variant, else the first of any that the platform can use.
func choose(from []Descriptor, on Platform) (string, error) {
	offered := make([]string, 0, len(from))
	best := ""
	for _, d := range from {
		p := d.Platform
		if p == nil {
			if len(from) == 1 {
				return d.Digest, nil
			}
			continue
		}
		offered = append(offered, path.Join(p.OS, p.Architecture, p.Variant))
		if p.OS != on.OS || p.Architecture != on.Architecture || !usable(p.Variant, on) {
			continue
		}
		if p.Variant == on.Variant {
			return d.Digest, nil
		}
		if best == "" {
			best = d.Digest
		}
	}
	if best == "" {
		return "", fmt.Errorf("%w: this node is %s, and there are %.500q", ErrNoPlatform, path.Join(on.OS, on.Architecture, on.Variant), strings.Join(offered, ", "))
	}
	return best, nil
}

// usable reports whether the platform runs a variant. Only variants of 32-bit ARM exclude
// one another; there, an earlier one will do.
func usable(variant string, on Platform) bool {
	return on.Architecture != "arm" || variant == "" || on.Variant == "" || variant <= on.Variant
}

func isImageConfig(mediaType string) bool {
	return mediaType == "application/vnd.oci.image.config.v1+json" || mediaType == "application/vnd.docker.container.image.v1+json"
}

// layers returns an image's layers, which are tars, or an artifact's, which are files
// unless their media type says tar.
func layers(ctx context.Context, from Fetcher, ref Reference, d document) ([]Layer, error) {
	all := make([]Layer, len(d.Layers))
	for i, part := range d.Layers {
		all[i].Descriptor = part
	}
	if !isImageConfig(d.Config.MediaType) {
		return all, nameFiles(all)
	}
	if err := d.Config.check(); err != nil {
		return nil, err
	}
	config, err := small(ctx, from, ref, d.Config)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", d.Config.Digest, err)
	}
	var c struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, malformed("configuration %s: %v", d.Config.Digest, err)
	}
	if len(c.RootFS.DiffIDs) != len(all) {
		return nil, malformed("it has %d layers, and its configuration knows %d", len(all), len(c.RootFS.DiffIDs))
	}
	for i, id := range c.RootFS.DiffIDs {
		if !IsDigest(id) {
			return nil, malformed("%.80q is no SHA-256 digest", id)
		}
		all[i].DiffID = id
	}
	return all, nil
}

// maxTitle bounds the bytes of a title, and maxTitleDepth its directories.
const (
	maxTitle      = 4095
	maxTitleDepth = 254
)

// titleAnnotation is the name of a file that is a layer of its own.
const titleAnnotation = "org.opencontainers.image.title"

// nameFiles names the files of an artifact: by their titles, else by their digests.
func nameFiles(all []Layer) error {
	for i := range all {
		l := &all[i]
		if strings.HasPrefix(l.MediaType, "application/vnd.oci.image.layer.") || strings.HasPrefix(l.MediaType, "application/vnd.docker.image.rootfs.diff.tar") {
			continue
		}
		l.File = "sha256-" + Hex(l.Digest)
		title, has := l.Annotations[titleAnnotation]
		if !has {
			continue
		}
		if l.File = path.Clean(title); !filepath.IsLocal(title) || l.File == "." {
			return malformed("the title %.200q of a layer leads out of the volume", title)
		}
		if len(title) > maxTitle || strings.Count(title, "/") > maxTitleDepth {
			return malformed("the title %.200q of a layer has more than %d bytes, or %d directories", title, maxTitle, maxTitleDepth)
		}
	}
	return nil
}

// small returns a blob that fits into memory, checked.
func small(ctx context.Context, from Fetcher, ref Reference, d Descriptor) ([]byte, error) {
	if d.Size > MaxManifest {
		return nil, malformed("it has %d bytes, more than %d", d.Size, MaxManifest)
	}
	r, err := from.Blob(ctx, ref, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	body, err := io.ReadAll(io.LimitReader(r, d.Size+1))
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	if hex.EncodeToString(sum[:]) != Hex(d.Digest) {
		return nil, ErrDigestMismatch
	}
	return body, nil
}
