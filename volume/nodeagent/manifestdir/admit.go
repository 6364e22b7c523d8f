package manifestdir

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/manifest"
)

// candidate is a new version of a file that may become the good one.
type candidate struct {
	file     *watchedFile
	digest   [sha256.Size]byte
	contents *Contents
}

// holders are the files that have an object in some of their versions. A change of a
// few files among many must not compare each with each.
type holders struct {
	by       map[any][]*watchedFile // by the references of objects and the UIDs of pods
	versions map[*watchedFile]*Contents
}

func newHolders() *holders {
	return &holders{by: make(map[any][]*watchedFile), versions: make(map[*watchedFile]*Contents)}
}

// put replaces the version of a file.
func (h *holders) put(file *watchedFile, version *Contents) {
	if before := h.versions[file]; before != nil {
		for key := range before.keys() {
			h.by[key] = slices.DeleteFunc(h.by[key], func(f *watchedFile) bool { return f == file })
		}
	}
	h.versions[file] = version
	for key := range version.keys() {
		h.by[key] = append(h.by[key], file)
	}
}

// first returns another file that has an object of the candidate, too, the first by its
// name; nil: there is none.
func (h *holders) first(c candidate) (first *watchedFile) {
	for key := range c.contents.keys() {
		for _, f := range h.by[key] {
			if f != c.file && (first == nil || f.name < first.name) {
				first = f
			}
		}
	}
	return first
}

// conflict returns the error that another file has an object of the candidate, too.
func (d *Directory) conflict(c candidate, h *holders) error {
	if other := h.first(c); other != nil {
		return d.common(c, h.versions[other], other)
	}
	return nil
}

// admitAll makes candidates good, unless they have an object that another file
// has, too: it would be unclear which of the two counts. An object may move from
// one candidate to another, so admitAll repeats until no further candidate can be
// admitted. Missing files have no objects.
//
// Nor may another candidate have it, where no good version decides between them. The
// order of the names must not decide: after a restart, a copy of a file that was refused
// until then would come first.
func (d *Directory) admitAll(candidates []candidate) {
	if len(candidates) == 0 {
		return
	}
	good := newHolders()
	for _, file := range d.files {
		if file.good != nil && file.gone.IsZero() {
			good.put(file, file.good)
		}
	}
	for {
		rivals := newHolders()
		for _, c := range candidates {
			if c.file.good == nil {
				rivals.put(c.file, c.contents)
			}
		}
		fault := func(c candidate) error {
			if c.file.good == nil {
				if err := d.conflict(c, rivals); err != nil {
					return err
				}
			}
			return d.conflict(c, good)
		}
		left := slices.DeleteFunc(slices.Clone(candidates), func(c candidate) bool {
			if fault(c) != nil {
				return false
			}
			d.admit(c)
			good.put(c.file, c.contents)
			return true
		})
		if len(left) == len(candidates) || len(left) == 0 {
			for _, c := range left {
				d.refuse(c.file, fault(c))
			}
			return
		}
		candidates = left
	}
}

func (d *Directory) admit(c candidate) {
	c.file.good, c.file.digest = c.contents, c.digest
	d.settled(c.file)
	for _, s := range c.contents.skipped {
		d.say(s.String())
	}
}

// common returns the error that a version of another file has an object of the
// candidate, too.
func (d *Directory) common(c candidate, version *Contents, other *watchedFile) error {
	for ref := range c.contents.Objects {
		if _, twice := version.Objects[ref]; twice {
			return d.twice(c, ref, other)
		}
	}
	for ref, pod := range c.contents.Pods {
		for otherRef, otherPod := range version.Pods {
			if ref == otherRef || pod.UID == otherPod.UID {
				return d.twice(c, ref, other)
			}
		}
	}
	return nil
}

func (d *Directory) twice(c candidate, ref volume.ObjectRef, other *watchedFile) error {
	return &manifest.Error{File: filepath.Join(d.dir, c.file.name), Object: ref.String(),
		Err: fmt.Errorf("%w: it is also in %s", manifest.ErrDuplicate, other.name)}
}
