package objects

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
)

// NewUID returns a random UUID (version 4, RFC 9562).
func NewUID() types.UID {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return formatUID(b, 4)
}

// DerivedUID returns the UID of an object that has none of its own: a UUID
// (version 8) made from its identity, never from its content. It is the same on
// every machine. The namespace is empty for cluster-wide kinds.
func DerivedUID(kind, namespace, name string) types.UID {
	return hashUID("object", kind, namespace, name)
}

// DerivedPodUID is [DerivedUID] for a pod. It is made from the pod's node, from
// the object that makes the pod (which may be the pod itself), and from the pod's
// ordinal in that object.
func DerivedPodUID(node, kind, namespace, name string, ordinal int) types.UID {
	return hashUID("pod", node, kind, namespace, name, strconv.Itoa(ordinal))
}

// hashUID hashes the length before every part, so that two lists of parts never
// give the same input.
func hashUID(parts ...string) types.UID {
	h := sha256.New()
	for _, part := range parts {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write([]byte(part))
	}
	return formatUID([16]byte(h.Sum(nil)), 8)
}

// formatUID writes 16 bytes as a UUID; the bits of version and variant are
// overwritten.
func formatUID(b [16]byte, version byte) types.UID {
	b[6] = b[6]&0x0f | version<<4
	b[8] = b[8]&0x3f | 0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:]))
}
