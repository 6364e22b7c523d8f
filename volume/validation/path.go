package validation

import (
	"strings"

	"github.com/podvol/podvol/volume"
)

// CheckAbsolutePath refuses a path of a manifest that is empty or not absolute,
// has an element "..", or contains a NUL byte. The error is an
// *[volume.InvalidSpecError]; it names the path by the argument what.
func CheckAbsolutePath(what, p string) error {
	switch {
	case p == "":
		return volume.Invalid(what, "must not be empty")
	case p[0] != '/':
		return volume.Invalid(what, "must be an absolute path, is %q", p)
	}
	return checkNoBacksteps(what, p)
}

func checkNoBacksteps(what, p string) error {
	for element := range strings.SplitSeq(p, "/") {
		if element == ".." {
			return volume.Invalid(what, "must not contain \"..\": %q", p)
		}
	}
	if strings.IndexByte(p, 0) >= 0 {
		return volume.Invalid(what, "must not contain a NUL byte: %q", p)
	}
	return nil
}
