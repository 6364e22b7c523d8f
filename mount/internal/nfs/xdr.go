package nfs

import (
	"encoding/binary"
	"errors"
)

// errShort is a reply that ends too early.
var errShort = errors.New("the reply is too short")

// maxString bounds what a reply may claim a string's length to be, in bytes.
const maxString = 1024

func appendUint32(b []byte, values ...uint32) []byte {
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

// appendString appends a string with its length, padded to four bytes.
func appendString(b []byte, s string) []byte {
	b = append(appendUint32(b, uint32(len(s))), s...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// reader reads XDR (RFC 4506) and remembers that something was missing.
type reader struct {
	left []byte
	bad  bool
}

func (r *reader) uint32() uint32 {
	if len(r.left) < 4 {
		r.bad, r.left = true, nil
		return 0
	}
	v := binary.BigEndian.Uint32(r.left)
	r.left = r.left[4:]
	return v
}

func (r *reader) bytes() []byte {
	n, padded, ok := opaqueLength(r.uint32(), len(r.left))
	if !ok {
		r.bad, r.left = true, nil
		return nil
	}
	b := r.left[:n]
	r.left = r.left[padded:]
	return b
}

// opaqueLength checks a length that a reply claims against the bytes that are
// left, and returns it without and with its padding. It is compared before it
// becomes an int, which has 32 bits on some machines.
func opaqueLength(claimed uint32, left int) (n, padded int, ok bool) {
	if claimed > maxString {
		return 0, 0, false
	}
	n = int(claimed)
	padded = (n + 3) &^ 3
	return n, padded, padded <= left
}

func (r *reader) err() error {
	if r.bad {
		return errShort
	}
	return nil
}
