//go:build linux || darwin || freebsd || netbsd || openbsd

package atomicdir

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/podvol/podvol/volume/fileset"
)

// digest identifies a set of files.
type digest [sha256.Size]byte

// digestOf also returns the sorted names. Those of the last set, if they are still the same,
// need no sorting, which of many small files takes as long as hashing them.
func digestOf(files map[string]fileset.File, last []string) (digest, []string) {
	names := last
	if !areNames(last, files) {
		names = slices.AppendSeq(make([]string, 0, len(files)), maps.Keys(files))
		slices.Sort(names)
	}
	h := sha256.New()
	var head []byte
	for _, name := range names {
		f := files[name]
		head = binary.LittleEndian.AppendUint64(head[:0], uint64(len(name)))
		head = append(head, name...)
		head = binary.LittleEndian.AppendUint32(head, uint32(f.Mode))
		head = appendOwner(head, f.UID)
		head = appendOwner(head, f.GID)
		head = binary.LittleEndian.AppendUint64(head, uint64(len(f.Data)))
		h.Write(head)
		h.Write(f.Data)
	}
	return digest(h.Sum(nil)), names
}

// areNames reports whether these different names are those of the files.
func areNames(names []string, files map[string]fileset.File) bool {
	return len(names) == len(files) && !slices.ContainsFunc(names, func(name string) bool {
		_, ok := files[name]
		return !ok
	})
}

func appendOwner(b []byte, id *int64) []byte {
	if id == nil {
		return append(b, 0)
	}
	return binary.LittleEndian.AppendUint64(append(b, 1), uint64(*id))
}

// node is a file or a directory of a set.
type node struct {
	name string
	// file is nil for a directory.
	file     *fileset.File
	children []node
	// same is set when the current version was found to have just this file.
	same bool
}

// newTree checks a set and sorts it into a tree. Directories have at least one
// child; the root has none for an empty set.
func newTree(files map[string]fileset.File) (node, error) {
	entries := make([]entry, 0, len(files))
	for given, f := range files {
		clean, err := fileset.CleanPath(given)
		if err != nil {
			return node{}, err
		}
		if err := checkFile(given, f); err != nil {
			return node{}, err
		}
		entries = append(entries, entry{clean, given, &f})
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.path, b.path) })
	children, err := grow(entries, 0)
	return node{children: children}, err
}

type entry struct {
	path, given string
	file        *fileset.File
}

// grow makes the nodes of sorted entries, whose paths have the same first
// prefix bytes.
func grow(entries []entry, prefix int) ([]node, error) {
	nodes := make([]node, 0, len(entries))
	directories := false
	for len(entries) > 0 {
		name, _, nested := strings.Cut(entries[0].path[prefix:], "/")
		if !nested {
			nodes = append(nodes, node{name: name, file: entries[0].file})
			if len(entries) > 1 && entries[1].path == entries[0].path {
				return nil, conflict(entries[1].given, entries[0].given)
			}
			entries = entries[1:]
			continue
		}
		// Paths with a common beginning lie side by side.
		below := entries[0].path[:prefix+len(name)+1]
		n := slices.IndexFunc(entries, func(e entry) bool { return !strings.HasPrefix(e.path, below) })
		if n < 0 {
			n = len(entries)
		}
		children, err := grow(entries[:n], len(below))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node{name: name, children: children})
		directories = true
		entries = entries[n:]
	}
	if directories {
		// A file "a" and a directory "a" may have "a-b" between them.
		slices.SortStableFunc(nodes, func(a, b node) int { return cmp.Compare(a.name, b.name) })
		for i := range nodes[1:] {
			if nodes[i].name == nodes[i+1].name {
				return nil, &fileset.PathError{Path: nodes[i].name, Reason: "it is both a file and the directory of another file of the set"}
			}
		}
	}
	return nodes, nil
}

func conflict(a, b string) error {
	return &fileset.PathError{Path: a, Reason: fmt.Sprintf("it is the same file as %q", b)}
}

func checkFile(path string, f fileset.File) error {
	if f.Mode&^fs.ModePerm != 0 {
		return &fileset.PathError{Path: path, Reason: fmt.Sprintf("its mode %v has bits beyond the permissions (0777)", f.Mode)}
	}
	for _, id := range []*int64{f.UID, f.GID} {
		if id != nil && (*id < 0 || *id >= math.MaxUint32) { // the last one means "unchanged" to chown(2)
			return &fileset.PathError{Path: path, Reason: fmt.Sprintf("its owner or group %d is not between 0 and %d", *id, int64(math.MaxUint32)-1)}
		}
	}
	return nil
}
