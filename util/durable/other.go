//go:build !unix

package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

func unsupported(op, path string) error {
	return &Error{Op: op, Path: path, Err: fmt.Errorf("it needs a Unix, and this is %s: %w", runtime.GOOS, errors.ErrUnsupported)}
}

// WriteFile always fails with an *[Error] that matches [errors.ErrUnsupported], as all
// functions here that change files.
func WriteFile(path string, _ []byte, _ fs.FileMode) error { return unsupported("write", path) }

// Create always fails.
func Create(path string, _ []byte, _ fs.FileMode) error { return unsupported("create", path) }

// CreateAt always fails.
func CreateAt(dir *os.File, name string, _ []byte, _ fs.FileMode) error {
	return unsupported("create", filepath.Join(dir.Name(), name))
}

// Remove always fails.
func Remove(path string) error { return unsupported("remove", path) }

// RemoveAt always fails.
func RemoveAt(dir *os.File, name string) error {
	return unsupported("remove", filepath.Join(dir.Name(), name))
}

// Sweep always fails.
func Sweep(dir string) (removed int, err error) { return 0, unsupported("sweep", dir) }
