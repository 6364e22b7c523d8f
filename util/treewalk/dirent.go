package treewalk

import (
	"bytes"
	"encoding/binary"
)

// entry is what a directory says of a file in it.
type entry struct {
	name string
	kind uint8 // unix.DT_…
}

// The places in a struct linux_dirent64, see getdents64(2).
const (
	direntLength = 16
	direntKind   = 18
	direntName   = 19
)

// parse appends the entries in what getdents64(2) has written, but "." and
// "..". [unix.ParseDirent] does not tell their kind.
func parse(b []byte, entries []entry) []entry {
	for len(b) > direntName {
		length := int(binary.NativeEndian.Uint16(b[direntLength:]))
		if length <= direntName || length > len(b) {
			break
		}
		name := b[direntName:length]
		if end := bytes.IndexByte(name, 0); end >= 0 {
			name = name[:end]
		}
		kind := b[direntKind]
		if s := string(name); s != "." && s != ".." && s != "" && binary.NativeEndian.Uint64(b) != 0 {
			entries = append(entries, entry{s, kind})
		}
		b = b[length:]
	}
	return entries
}
