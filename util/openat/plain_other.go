//go:build unix && !linux

package openat

// IsPlain cannot tell here without asking file systems, and is false.
func IsPlain(string) bool { return false }
