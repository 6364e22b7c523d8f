// Package layers unpacks the layers of images into directories of their own, and merges
// these into the tree that a pod sees.
//
//   - A layer is a stranger's tar. It is unpacked by directory descriptors, one name at a
//     time, and no link is followed: nothing that it says leads out of its directory.
//   - Files, directories, symbolic links and hard links inside the layer are made; devices,
//     pipes and everything else are refused. Bits such as setuid and extended attributes
//     are left out: the volume is mounted nosuid and noexec.
//   - What a layer hides of the ones below is kept in its [Layer], not in the directory.
//   - Merging links the files: the trees of all images that have a layer share its files,
//     on disk and in memory, on every file system with hard links and without a limit to
//     the number of layers.
package layers

import (
	"fmt"

	"github.com/podvol/podvol/volume"
)

// Causes of refusals.
const (
	ErrHostile  volume.Cause = "the layer has what a volume must not have"
	ErrTooLarge volume.Cause = "the image is larger than this node allows"
	ErrNoSpace  volume.Cause = "the image leaves too little space on the node's disk"
)

// Layer is what is known of an unpacked layer.
type Layer struct {
	// Digest is the digest of the layer as it is sent, DiffID of the tar in it.
	Digest string `json:"digest"`
	DiffID string `json:"diffID"`
	// File says that the layer is one file, with the name fileName in its directory.
	File bool `json:"file,omitempty"`
	// Bytes and Entries are its size.
	Bytes   int64 `json:"bytes"`
	Entries int64 `json:"entries"`
	// PathBytes is what the paths of its directories and whiteouts have, which are kept in
	// memory while an image is made.
	PathBytes int64 `json:"pathBytes"`
	// Whiteouts are paths that the layer hides of the layers below, Opaque directories of which
	// it hides all that is in them there.
	Whiteouts []string `json:"whiteouts,omitempty"`
	Opaque    []string `json:"opaque,omitempty"`
	// Implied are parent directories that the tar has no entry for: a lower layer's attributes
	// stay.
	Implied []string `json:"implied,omitempty"`
}

// fileName is the name of the file of a layer that is one.
const fileName = "blob"

// hostile is a refusal of one entry of a tar.
func hostile(name, format string, args ...any) error {
	return fmt.Errorf("%w: %.200q: %s", ErrHostile, name, fmt.Sprintf(format, args...))
}
