package volume

import "strings"

// AddSELinuxMountOption returns options with the one that gives every file of a
// file system the SELinux label at mount time (mount(8), "context="); an empty
// label adds nothing. The label is quoted, since it may have commas. Options is
// not changed.
func AddSELinuxMountOption(options []string, label string) []string {
	if label == "" {
		return options
	}
	added := make([]string, 0, len(options)+1)
	return append(append(added, options...), `context="`+label+`"`)
}

// SELinuxMountOption returns the label that AddSELinuxMountOption gave a file
// system, by the options that the mount table shows of it, where only a label
// with commas is quoted (Linux 6.12, security/selinux/hooks.c); empty: none.
func SELinuxMountOption(options []string) string {
	for _, o := range options {
		if label, ok := strings.CutPrefix(o, "context="); ok {
			return strings.Trim(label, `"`)
		}
	}
	return ""
}

// CheckSELinuxLabel refuses what is no label, or part of one: a quote or a comma
// elsewhere than between categories would smuggle mount options in. The error is
// an *[InvalidSpecError].
func CheckSELinuxLabel(what, s string) error {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:,-"
	if i := strings.IndexFunc(s, func(r rune) bool { return !strings.ContainsRune(allowed, r) }); i >= 0 {
		return Invalid(what, "%q has a character that no SELinux label has", s)
	}
	return nil
}
