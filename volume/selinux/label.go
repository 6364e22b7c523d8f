package selinux

import (
	"strings"

	"github.com/podvol/podvol/volume"
)

// AddMountOption returns options with the mount option that gives every
// file of a file system the SELinux label (mount(8), "context="). An empty label
// adds nothing. The label is quoted, because it may have commas. options is not
// changed.
func AddMountOption(options []string, label string) []string {
	if label == "" {
		return options
	}
	added := make([]string, 0, len(options)+1)
	return append(append(added, options...), `context="`+label+`"`)
}

// MountOption returns the label that AddSELinuxMountOption gave a file
// system; empty: none. It reads the options of the mount table. There only a
// label with commas is quoted (Linux 6.12, security/selinux/hooks.c).
func MountOption(options []string) string {
	for _, o := range options {
		if label, ok := strings.CutPrefix(o, "context="); ok {
			return strings.Trim(label, `"`)
		}
	}
	return ""
}

// CheckLabel refuses a string that is no label or part of one. A quote, or
// a comma that is not between categories, would smuggle in mount options. The
// error is an *[volume.InvalidSpecError].
func CheckLabel(what, s string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:,-"
	if i := strings.IndexFunc(s, func(r rune) bool { return !strings.ContainsRune(allowed, r) }); i >= 0 {
		return volume.Invalid(what, "%q has a character that no SELinux label has", s)
	}
	return nil
}
