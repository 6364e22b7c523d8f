// Package below compares paths by their names alone: it neither looks at a
// file system nor follows links. Whoever must not be led astray by a link
// needs a descriptor instead.
//
// Like every package below util, it carries no promise of compatibility.
package below

import "strings"

// Cut reports whether p is dir or lies below it, and returns what leads from
// dir to p; that is empty if they are the same. Both must be clean, and both
// absolute or both relative.
func Cut(dir, p string) (rest string, ok bool) {
	if p == dir {
		return "", true
	}
	return strings.CutPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

// Strictly reports whether p lies below dir and is not dir itself.
func Strictly(dir, p string) bool {
	rest, ok := Cut(dir, p)
	return ok && rest != ""
}
