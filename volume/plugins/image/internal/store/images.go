package store

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
)

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
	// Directories are how many its tree has, which it shares with no other.
	Directories int64 `json:"directories"`
}

// Everyone is the grant of an image that needs no secret, or that the node itself has.
const Everyone = "*"

// part is a layer of an image.
type part struct {
	Key string `json:"key"`
	// Name is the path of the file that the layer is; empty: it is a tree.
	Name string `json:"name,omitempty"`
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

// CameFrom reports whether the image was pulled from a repository, by the repository's name.
func (i Image) CameFrom(repository string) bool {
	for name := range i.Names {
		if ref, err := oci.Parse(name); err == nil && ref.Name() == repository {
			return true
		}
	}
	return false
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

// AddName notes that an image was pulled by a reference, with a grant.
func (s *Store) AddName(ctx context.Context, image Image, ref, grant string) error {
	return s.change(ctx, image.Digest, func(i *Image) {
		if i.Names == nil {
			i.Names = make(map[string]time.Time)
		}
		i.Names[ref] = time.Now()
		if !slices.Contains(i.Grants, grant) {
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
