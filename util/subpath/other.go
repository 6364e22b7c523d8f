//go:build !unix

package subpath

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

func unsupported(call string, root *os.File, path string) error {
	return &os.PathError{Op: call, Path: filepath.Join(root.Name(), path), Err: fmt.Errorf("it needs a Unix, and this is %s: %w", runtime.GOOS, errors.ErrUnsupported)}
}

// Open always fails.
func Open(root *os.File, path string) (*os.File, error) {
	return nil, unsupported("subpath.Open", root, path)
}

// OpenOrMake always fails.
func OpenOrMake(_ context.Context, root *os.File, path string) (*os.File, error) {
	return nil, unsupported("subpath.OpenOrMake", root, path)
}

// MakePoint always fails.
func MakePoint(_ context.Context, root *os.File, path string, _ bool) error {
	return unsupported("subpath.MakePoint", root, path)
}
