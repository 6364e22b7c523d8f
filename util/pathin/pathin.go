// Package pathin tells whether a path lies in a directory, by their names alone. It
// reads no file system and follows no link: a caller that must not be misled by a
// link uses a file descriptor instead.
//
// Like every package below util, it carries no promise of compatibility.
package pathin

import "strings"

// Cut reports whether p is dir or lies below it, and returns what leads from
// dir to p; that is empty if they are the same. Both must be clean, and both
// absolute or both relative.
func Cut(dir, p string) (rest string, ok bool) {
	if p == dir {
		return "", true
	}
	rest, ok = strings.CutPrefix(p, strings.TrimSuffix(dir, "/"))
	if !ok || !strings.HasPrefix(rest, "/") {
		return p, false
	}
	return rest[1:], true
}

// In reports whether p is dir or lies below it, by the rules of [Cut].
func In(dir, p string) bool {
	_, ok := Cut(dir, p)
	return ok
}

// Overlap reports whether one of two paths is the other or lies below it, by the rules of
// [Cut].
func Overlap(a, b string) bool { return In(a, b) || In(b, a) }

// Strictly reports whether p lies below dir and is not dir itself.
func Strictly(dir, p string) bool {
	rest, ok := Cut(dir, p)
	return ok && rest != ""
}
