package treewalk

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Name is the name of a directory's entry as the kernel has written it, with a
// NUL byte at its end. As a Go string, made a C string of again for each system
// call, names would cost more memory than everything else in a walk.
type Name []byte

// String returns the name without the NUL byte.
func (n Name) String() string { return unix.ByteSliceToString(n) }

func nameOf(s string) Name { return append([]byte(s), 0) }

// special reports whether it is "." or "..".
func (n Name) special() bool {
	return n[0] == '.' && (n[1] == 0 || n[1] == '.' && n[2] == 0)
}

// The places in a struct linux_dirent64, see getdents64(2): the length of the
// whole, the type, and the name with a NUL byte.
const (
	direntLength = 16
	direntKind   = 18
	direntName   = 19
)

// entryLength is the length of the first of the entries that getdents64(2) has
// written; 0: that is no entry.
func entryLength(entries []byte) int {
	if len(entries) <= direntName {
		return 0
	}
	length := int(binary.NativeEndian.Uint16(entries[direntLength:]))
	if length > len(entries) || length <= direntName || bytes.IndexByte(entries[direntName:length], 0) < 1 {
		return 0
	}
	return length
}

// middle is where the entries' second half begins, roughly.
func middle(entries []byte) int {
	at := 0
	for at < len(entries)/2 {
		length := entryLength(entries[at:])
		if length == 0 {
			break
		}
		at += length
	}
	return at
}
