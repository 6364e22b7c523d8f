package durable

import (
	"crypto/rand"
	"strings"
)

// Temporary files are named independently of their target, whose name may be
// as long as a name can be.
const tempPrefix, tempSuffix = ".durable-", ".tmp"

func newTemp() string { return tempPrefix + rand.Text() + tempSuffix }

// IsTemp reports whether a file of this name is the temporary file of a
// writer, running or crashed. Readers of a directory skip such names.
func IsTemp(name string) bool {
	return strings.HasPrefix(name, tempPrefix) && strings.HasSuffix(name, tempSuffix)
}
