//go:build unix && !linux

package durable

import (
	"errors"
	"io/fs"
	"os"
)

// linkUnnamed cannot make a file that has no name: this takes Linux. [Create] then makes
// one that has a temporary name.
func linkUnnamed(*os.File, string, []byte, fs.FileMode) error { return errors.ErrUnsupported }

func syncNew(f *os.File) error { return f.Sync() }
