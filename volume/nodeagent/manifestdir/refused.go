package manifestdir

import (
	"cmp"
	"path/filepath"
	"slices"
	"time"
)

// Refusal is a file that is refused, or a directory that cannot be read.
type Refusal struct {
	// Path is its path.
	Path string
	// Reason is for people. It names the objects at fault and contains no value of a
	// manifest.
	Reason string
	// Since is the time of the first refusal after the last good version.
	Since time.Time
}

// Refused returns what is refused, in the order of the paths. The caller owns it.
func (d *Directory) Refused() (all []Refusal) {
	if d.fault != "" {
		all = append(all, Refusal{d.dir, d.fault, d.unread})
	}
	for _, file := range d.files {
		if file.fault != "" {
			all = append(all, Refusal{filepath.Join(d.dir, file.name), file.fault, file.refused})
		}
	}
	slices.SortFunc(all, func(a, b Refusal) int { return cmp.Compare(a.Path, b.Path) })
	return all
}
