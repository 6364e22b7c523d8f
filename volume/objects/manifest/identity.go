package manifest

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/objects"
)

// podUID names a pod by where it runs and what it is, never by its content, so
// that an edited manifest updates the pod in place.
func podUID(node, kind, namespace, name string, ordinal int) types.UID {
	return hashUID("pod", node, kind, namespace, name, strconv.Itoa(ordinal))
}

// objectUID names an object that does not belong to a node.
func objectUID(kind, namespace, name string) types.UID {
	return hashUID("object", kind, namespace, name)
}

// hashUID returns a UUID of version 8. Every part is preceded by its length,
// so that no two lists of parts look the same.
func hashUID(parts ...string) types.UID {
	h := sha256.New()
	for _, part := range parts {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		h.Write(length[:])
		h.Write([]byte(part))
	}
	return objects.FormatUID([16]byte(h.Sum(nil)), 8)
}
