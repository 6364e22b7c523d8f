package payload

import (
	"errors"
	"fmt"

	"github.com/podvol/podvol/volume"
)

// MissingError says that an object, or a key of it, is not there and is not
// optional. For a missing object it matches [volume.ErrNotFound].
type MissingError struct {
	// Field is the source or item that asks for it.
	Field string
	Ref   volume.ObjectRef
	// Key is empty when the object itself is missing.
	Key string
	// Err is what the role said; nil for a key.
	Err error
}

func (e *MissingError) Error() string {
	if e.Key != "" {
		return fmt.Sprintf("%s: %s has no key %q; add the key, or set optional: true on the source to go without it", e.Field, e.Ref, e.Key)
	}
	return fmt.Sprintf("%s: %s not found; create it, or set optional: true to start without it", e.Field, e.Ref)
}

// Unwrap returns what the role said.
func (e *MissingError) Unwrap() error { return e.Err }

// lookUpError turns what a role answered into the error of a source.
func lookUpError(field string, ref volume.ObjectRef, err error) error {
	if errors.Is(err, volume.ErrNotFound) {
		return &MissingError{Field: field, Ref: ref, Err: err}
	}
	return fmt.Errorf("%s: cannot read %s: %w", field, ref, err)
}
