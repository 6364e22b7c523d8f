// Package seal gives small files a checksum, so that a flipped bit or a missing end
// is found before anything is done by what they say.
//
// Like every package below util, it carries no promise of compatibility.
package seal

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
)

const prefix = "sha256:"

// length is that of what Add adds: the prefix, the sum in hexadecimal digits and a
// newline.
const length = len(prefix) + 2*sha256.Size + 1

var (
	// ErrBroken says that a checksum is that of something else.
	ErrBroken = errors.New("its checksum is not that of what it says: it was damaged, or changed by hand")
	// ErrNone is for files that must have a checksum. Only the caller knows which
	// do: a file says so itself, by its version.
	ErrNone = errors.New("it has no checksum, which every file of this version has: it was cut off, or changed by hand")
)

// Add returns a line of JSON, which ends with its newline, with its checksum after
// it. No other bit can be changed without Open or the decoder noticing: what comes
// after the line is no JSON, so that a file is never taken for one that has no
// checksum.
func Add(line []byte) []byte {
	return fmt.Appendf(bytes.Clone(line), "%s%x\n", prefix, sha256.Sum256(line))
}

// Open returns the line. For a file that has no checksum, or seems to have none,
// sealed is false and the line is all of it. The error is [ErrBroken].
func Open(data []byte) (line []byte, sealed bool, err error) {
	cut := len(data) - length
	if cut < 0 || !bytes.HasPrefix(data[cut:], []byte(prefix)) {
		return data, false, nil
	}
	line = data[:cut]
	if !bytes.Equal(Add(line), data) {
		return nil, true, ErrBroken
	}
	return line, true, nil
}
