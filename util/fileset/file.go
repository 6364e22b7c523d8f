// Package fileset describes a set of small files by their relative paths: which
// paths are allowed, which do not go together, and each file's contents, mode and
// owner. It reads and writes no file, and builds for every system. Package atomicdir
// publishes such a set.
//
// Like every package below util, it carries no promise of compatibility.
package fileset

import "io/fs"

// File is one file to be published.
type File struct {
	// Data is its contents; they are only read, and not kept.
	Data []byte
	// Mode is its permissions, exactly, whatever the umask. Other bits are
	// refused.
	Mode fs.FileMode
	// UID and GID own the file; nil means the owner that its creation gives:
	// the process's user, and its group or that of a setgid directory.
	UID, GID *int64
}

// Reserved begins the names in the directory that no file of a set may have.
const Reserved = ".."
