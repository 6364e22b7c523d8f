package manifestdir

import (
	"cmp"
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

// admitAll makes candidates good, unless they have an object that another file
// has, too: it would be unclear which of the two counts. An object may move from
// one candidate to another, so admitAll repeats until no further candidate can be
// admitted.
func (d *Directory) admitAll(candidates []candidate) {
	for {
		left := slices.DeleteFunc(slices.Clone(candidates), func(c candidate) bool { return d.rival(c, candidates) == nil && d.admit(c) })
		if len(left) == len(candidates) || len(left) == 0 {
			for _, c := range left {
				d.refuse(c.file, cmp.Or(d.rival(c, candidates), d.conflict(c)))
			}
			return
		}
		candidates = left
	}
}

// rival returns the error that another candidate has the same object and no good
// version decides between them. The order of the names must not decide: after a
// restart, a copy of a file that was refused until then would come first.
func (d *Directory) rival(c candidate, candidates []candidate) error {
	for _, other := range candidates {
		if other.file == c.file || c.file.good != nil || other.file.good != nil {
			continue
		}
		if err := d.common(c, other.contents, other.file); err != nil {
			return err
		}
	}
	return nil
}

func (d *Directory) admit(c candidate) bool {
	if d.conflict(c) != nil {
		return false
	}
	c.file.good, c.file.digest = c.contents, c.digest
	d.settled(c.file)
	for _, s := range c.contents.skipped {
		d.say(s.String())
	}
	return true
}

// conflict returns the error that another file has the same object. Missing files
// have none.
func (d *Directory) conflict(c candidate) error {
	for _, other := range d.sorted() {
		if other == c.file || other.good == nil || !other.gone.IsZero() {
			continue
		}
		if err := d.common(c, other.good, other); err != nil {
			return err
		}
	}
	return nil
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
