package sharedirs

import (
	"cmp"
	"slices"
	"strings"

	"github.com/podvol/podvol/volume"
)

// OnDelete says what becomes of a directory when its volume is deleted.
type OnDelete string

// The values are as in csi-driver-nfs's parameter onDelete.
const (
	// Delete deletes the directory with all that is in it.
	Delete OnDelete = "delete"
	// Archive renames it to "archived-<name>", beside where it was. It is
	// no volume's from then on.
	Archive OnDelete = "archive"
	// Retain leaves it where it is. It is no volume's from then on, so that no
	// later volume gets the path until it was moved away.
	Retain OnDelete = "retain"
)

// careful lists them, the one that keeps most last.
func careful() []OnDelete { return []OnDelete{Delete, Archive, Retain} }

// ParseOnDelete reads the value of a field, in whatever case. Empty is [Delete].
func ParseOnDelete(field, s string) (OnDelete, error) {
	o := OnDelete(strings.ToLower(cmp.Or(s, string(Delete))))
	if !o.valid() {
		return "", volume.Invalid(field, "is %q; it can be delete, archive or retain", o)
	}
	return o, nil
}

func (o OnDelete) valid() bool { return slices.Contains(careful(), o) }

// stricter returns the one of the two that keeps more.
func (o OnDelete) stricter(other OnDelete) OnDelete {
	if slices.Index(careful(), other) > slices.Index(careful(), o) {
		return other
	}
	return o
}
