//go:build !unix

package atomicdir

import (
	"context"
	"errors"
	"fmt"

	"github.com/podvol/podvol/volume/fileset"
)

// Publisher publishes sets of files; here it cannot.
type Publisher struct{}

var errNotUnix = fmt.Errorf("a set of files is published by symbolic links of a Unix: %w", errors.ErrUnsupported)

// Publish always fails with an *[Error] that matches [errors.ErrUnsupported].
func (*Publisher) Publish(_ context.Context, dir string, _ map[string]fileset.File) (changed bool, err error) {
	return false, &Error{Op: "open", Dir: dir, Err: errNotUnix}
}

// Forget does nothing.
func (*Publisher) Forget(string) {}

func (*Error) advice() string { return "" }
