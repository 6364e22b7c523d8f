package persistentvolume

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
)

const sealPrefix = "sha256:"

// sealLength is that of what seal adds: the prefix, the sum in hexadecimal digits
// and a newline.
const sealLength = len(sealPrefix) + 2*sha256.Size + 1

var (
	errBrokenSeal = errors.New("its checksum is not that of what it says: it was damaged, or changed by hand")
	errNoSeal     = errors.New("it has no checksum, which every file of this version has: it was cut off, or changed by hand")
)

// seal returns a line, which ends with its newline, with its checksum after it. No
// other bit can be changed without somebody noticing: what comes after the line is
// no JSON, so that a file is never taken for one that has no checksum.
func seal(line []byte) []byte {
	return fmt.Appendf(bytes.Clone(line), "%s%x\n", sealPrefix, sha256.Sum256(line))
}

// unseal returns the line; sealed is false for a file that earlier versions have
// written, or that seems to be one.
func unseal(data []byte) (line []byte, sealed bool, err error) {
	cut := len(data) - sealLength
	if cut < 0 || !bytes.HasPrefix(data[cut:], []byte(sealPrefix)) {
		return data, false, nil
	}
	line = data[:cut]
	if !bytes.Equal(seal(line), data) {
		return nil, true, errBrokenSeal
	}
	return line, true, nil
}
