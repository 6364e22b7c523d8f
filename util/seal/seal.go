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

// length is how much Add adds: the prefix, the sum in hexadecimal digits and a
// newline.
const length = len(prefix) + 2*sha256.Size + 1

var (
	// ErrBroken says that a checksum does not match.
	ErrBroken = errors.New("checksum mismatch: the file is damaged, or was edited")
	// ErrNone says that there is no checksum.
	ErrNone = errors.New("it has no checksum, which every such file has: it was cut off, or changed by hand, or an unknown version wrote it")
)

// Add returns a line of JSON, which ends with its newline, with its checksum after
// it. No bit of it can be changed without Open noticing.
func Add(line []byte) []byte {
	return fmt.Appendf(bytes.Clone(line), "%s%x\n", prefix, sha256.Sum256(line))
}

// Open returns the line of a file. The error is [ErrNone] or [ErrBroken].
func Open(data []byte) (line []byte, err error) {
	cut := len(data) - length
	if cut < 0 || !bytes.HasPrefix(data[cut:], []byte(prefix)) {
		return nil, ErrNone
	}
	line = data[:cut]
	if !bytes.Equal(Add(line), data) {
		return nil, ErrBroken
	}
	return line, nil
}
