//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package atomicdir

import (
	"context"
	"errors"
	"fmt"

	"github.com/podvol/podvol/volume/fileset"
)

// Publisher publishes sets of files; here it cannot.
type Publisher struct {
	// Sole is as on other systems.
	Sole bool
}

var errNotHere = fmt.Errorf("a set of files is published on Linux, macOS, FreeBSD, NetBSD and OpenBSD alone: %w", errors.ErrUnsupported)

// Publish always fails with an *[Error] that matches [errors.ErrUnsupported].
func (*Publisher) Publish(_ context.Context, dir string, _ map[string]fileset.File) (changed bool, err error) {
	return false, &Error{Op: "open", Dir: dir, Err: errNotHere}
}

// Forget does nothing.
func (*Publisher) Forget(string) {}

func (*Error) advice() string { return "" }
