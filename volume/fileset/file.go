// Package fileset describes a set of small files by their relative paths: which
// paths are allowed, which do not go together, and each file's contents, mode and
// owner. It reads and writes no file, builds for every system, and imports nothing but the
// standard library. Package podfiles makes such sets of a pod's volumes, and package
// atomicdir writes them into a directory.
package fileset

import (
	"fmt"
	"io/fs"
	"log/slog"
)

// File is one file of a set. Printing it shows no contents: they may be secret.
type File struct {
	// Data is its contents.
	Data []byte
	// Mode is its permissions, exactly, whatever the umask. Other bits are
	// refused.
	Mode fs.FileMode
	// UID and GID own the file; nil means the owner that its creation gives: the
	// process's user, and its group or a setgid directory's.
	UID, GID *int64
}

// String shows the mode, the size and the owners.
func (f File) String() string {
	id := func(id *int64) string {
		if id == nil {
			return "-"
		}
		return fmt.Sprint(*id)
	}
	return fmt.Sprintf("{%v, %d bytes, owner %s:%s}", f.Mode, len(f.Data), id(f.UID), id(f.GID))
}

// LogValue implements [slog.LogValuer]: logs show no contents either.
func (f File) LogValue() slog.Value { return slog.StringValue(f.String()) }

// GoString is String, for %#v.
func (f File) GoString() string { return f.String() }

// Reserved begins the names in the directory that no file of a set may have.
const Reserved = ".."
