package podmount

import (
	"slices"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/lazyunmount"
)

// IsDetached reports whether an error says that mounts were detached lazily, and
// nothing else.
func IsDetached(err error) bool {
	if of, ok := err.(*volume.Error); ok {
		err = of.Err
	}
	_, only := err.(*lazyunmount.Error)
	return only
}

// JoinDetached joins the errors of earlier and new detached mounts; either may be
// nil.
func JoinDetached(then, now *lazyunmount.Error) *lazyunmount.Error {
	switch {
	case then == nil:
		return now
	case now == nil:
		return then
	}
	return &lazyunmount.Error{Mount: now.Mount, Superblocks: slices.Concat(then.Superblocks, now.Superblocks)}
}
