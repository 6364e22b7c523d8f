package fileset

import (
	"fmt"
	"path"
	"strings"
)

const (
	// maxPath is in bytes. Linux allows 4096 for a whole path; the rest is
	// room for the directory in front.
	maxPath = 3584
	// maxName is NAME_MAX.
	maxName = 255
)

// PathError says why a file of a set is refused. Nothing was touched.
type PathError struct {
	// Path is the path as it was given.
	Path string
	// Reason says why it is refused and which paths are allowed.
	Reason string
}

func (e *PathError) Error() string {
	shown := e.Path
	if len(shown) > maxName {
		shown = shown[:maxName] + "…"
	}
	return fmt.Sprintf("file path %q cannot be published: %s", shown, e.Reason)
}

// CheckPath refuses, with a *[PathError], a path that no published file can have.
// Paths are relative, their elements separated by "/"; empty and "." elements are
// allowed and mean nothing. Refused are paths that are empty or absolute, that
// have an element "..", whose first element begins with "..", that contain a NUL
// byte, or that are too long (255 bytes an element, 3584 in all).
func CheckPath(p string) error {
	_, err := CleanPath(p)
	return err
}

// CleanPath returns the clean form of a path. The error is as in [CheckPath].
func CleanPath(p string) (string, error) {
	refuse := func(format string, args ...any) (string, error) {
		return "", &PathError{Path: p, Reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case p == "":
		return refuse("it is empty")
	case p[0] == '/':
		return refuse("it is absolute; it must be relative to the volume")
	case len(p) > maxPath:
		return refuse("it has %d bytes, at most %d are allowed", len(p), maxPath)
	case strings.IndexByte(p, 0) >= 0:
		return refuse("it contains a NUL byte")
	}
	for element := range strings.SplitSeq(p, "/") {
		if element == ".." {
			return refuse(`it must not contain ".."`)
		}
		if len(element) > maxName {
			return refuse("an element has %d bytes, at most %d are allowed", len(element), maxName)
		}
	}
	clean := path.Clean(p)
	if clean == "." {
		return refuse("it names the volume itself, not a file in it")
	}
	if strings.HasPrefix(clean, Reserved) {
		return refuse(`names that begin with ".." are reserved`)
	}
	return clean, nil
}
