package subpath

import (
	"path"
	"strings"
)

// maxPath is PATH_MAX with its NUL byte.
const maxPath = 4096

// Check refuses, with an *[InvalidPathError], a path that is empty, absolute,
// has an element "..", contains a NUL byte, or is longer than Linux allows.
// It does what the functions here do first, without looking at a file system.
func Check(p string) error {
	_, err := clean(p)
	return err
}

func clean(p string) (string, error) {
	reason := ""
	switch {
	case p == "":
		reason = "is empty"
	case p[0] == '/':
		reason = "must be relative to the volume"
	case len(p) >= maxPath:
		reason = "is too long"
	case strings.IndexByte(p, 0) >= 0:
		reason = "contains a NUL byte"
	}
	for element := range strings.SplitSeq(p, "/") {
		if element == ".." {
			reason = `must not contain ".."`
		}
	}
	if reason != "" {
		return "", &InvalidPathError{Path: p, Reason: reason}
	}
	return path.Clean(p), nil
}
