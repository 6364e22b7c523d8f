package mount

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/podvol/podvol/mount/internal/mountopt"
)

// OptionError says that a mount option is refused, because mount(8) as root would do more
// with it than mount.
type OptionError struct {
	// Option is the refused element, as it was given. It may hold a password, which the
	// error's text leaves out.
	Option string
	// Reason says why, in a few words.
	Reason string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("mount option %q is refused: %s", withoutValue(e.Option), e.Reason)
}

// withoutValue returns the part before an option's value, or before a sign that
// makes it more than one option: a malformed one may hold a password anywhere
// behind.
func withoutValue(option string) string {
	at := strings.IndexAny(option, "=, ")
	if at < 0 || at == len(option)-1 {
		return option
	}
	return option[:at+1] + masked
}

// SourceError says that a mount source is refused before mount(8) gets it.
type SourceError struct {
	// Source is the refused source, as it was given.
	Source string
	// Reason says why, in a few words.
	Reason string
}

func (e *SourceError) Error() string {
	return fmt.Sprintf("mount source %q is refused: %s", e.Source, e.Reason)
}

// CheckOptions refuses mount options that must not come from a manifest. options has one
// option to an element. It refuses
//
//   - options that turn a mount into another operation (bind, move, remount,
//     propagation);
//   - options that make mount(8) do more as root (loop devices, helpers, X-mount.*);
//   - options that let ordinary users control the mount;
//   - elements that are not one option.
//
// The error is an *[OptionError] for the first refused one. nil means that mount(8) reads
// all of them, joined by commas, as just these options.
func CheckOptions(options []string) error {
	for _, option := range options {
		if reason := refuseOption(option); reason != "" {
			return &OptionError{Option: option, Reason: reason}
		}
	}
	return nil
}

// CheckSource refuses mount sources that mount(8) would misread: empty ones, those that
// begin with "-", and those with control characters. The error is a *[SourceError].
func CheckSource(source string) error {
	switch {
	case source == "":
		return &SourceError{source, "it is empty"}
	case strings.HasPrefix(source, "-"):
		return &SourceError{source, `mount(8) takes what begins with "-" for a flag`}
	case strings.ContainsFunc(source, isControl):
		return &SourceError{source, "it contains a control character"}
	}
	return nil
}

// refuseOption returns the reason against one option, or nothing.
func refuseOption(option string) string {
	switch {
	case option == "":
		return "it is empty"
	case strings.HasPrefix(option, "-"):
		return `mount(8) may take what begins with "-" for a flag`
	case strings.ContainsFunc(option, isControl):
		return "it contains a control character"
	case strings.Contains(option, ","):
		return "it contains a comma, give each option in an element of its own"
	case strings.Contains(option, `"`):
		return "a double quote can swallow the options after it"
	case strings.HasSuffix(option, `\`):
		return "a backslash at the end swallows the option after it"
	}
	// mount(8) compares names as they are, some versions and helpers do not.
	name, _, _ := strings.Cut(strings.ToLower(option), "=")
	if strings.ContainsAny(name, " ") || name == "" {
		return "it has no proper name"
	}
	return refuseName(name)
}

func refuseName(name string) string {
	if _, ok := mountopt.PropagationFlag(name); ok {
		return "it changes the propagation of mounts; use mountPropagation of the container's volume mount"
	}
	switch {
	case slices.Contains([]string{"bind", "rbind", "move", "remount"}, name):
		return "it is another operation than mounting this volume"
	case slices.Contains([]string{"loop", "offset", "sizelimit", "encryption"}, name):
		return "it sets up a loop device on the node"
	case name == "helper" || name == "uhelper":
		return "it names a program that the node would run as root"
	case strings.HasPrefix(name, "x-mount."):
		return "it makes mount(8) change the node beyond the mount"
	case strings.HasPrefix(name, "verity."):
		return "it makes mount(8) open further files and devices of the node"
	case slices.Contains([]string{"user", "users", "owner", "group"}, name):
		return "it is about letting ordinary users mount"
	}
	return ""
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// plainly is the length in bytes from which a secret value is masked wherever
// it occurs. Shorter ones are masked as whole words only: a text in which each
// "1" is masked tells nothing.
const plainly = 4

// Mask replaces each sensitive option, and each value in one, in what a mount
// helper printed.
func (r Request) Mask(text string) string {
	var secrets []string
	for _, element := range r.Sensitive {
		for _, spelt := range spellings(element) {
			_, value, _ := strings.Cut(spelt, "=")
			secrets = append(secrets, spelt, value)
		}
	}
	// The longest first, so that none is cut up by another that is a part of it.
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	for _, secret := range slices.Compact(secrets) {
		switch {
		case secret == "":
		case len(secret) >= plainly:
			text = strings.ReplaceAll(text, secret, masked)
		default:
			text = maskWord(text, secret)
		}
	}
	return text
}

// spellings are the ways in which an element of Sensitive may be printed: as a
// whole and each option in it, as given and without the quotes and backslashes
// that protect commas. A program that does not know these prints parts of one, so
// these count too.
func spellings(element string) []string {
	var all []string
	for _, option := range append([]string{element}, mountopt.Split(element)...) {
		unescaped := strings.ReplaceAll(option, `\,`, ",")
		all = append(all, option, unescaped, unquoted(option), unquoted(unescaped))
	}
	for part := range strings.SplitSeq(element, ",") {
		all = append(all, part, unquoted(strings.TrimSuffix(part, `\`)))
	}
	return all
}

func unquoted(option string) string { return strings.ReplaceAll(option, `"`, "") }

// maskWord masks word where no letter or digit touches it.
func maskWord(text, word string) string {
	var b strings.Builder
	for {
		i := strings.Index(text, word)
		if i < 0 {
			return b.String() + text
		}
		end := i + len(word)
		b.WriteString(text[:i])
		if i > 0 && isWordByte(text[i-1]) || i == 0 && endsInWord(b.String()) || end < len(text) && isWordByte(text[end]) {
			b.WriteString(word)
		} else {
			b.WriteString(masked)
		}
		text = text[end:]
	}
}

func endsInWord(s string) bool { return s != "" && isWordByte(s[len(s)-1]) }

func isWordByte(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '_' || c >= 0x80
}

// MaskOption shows an option; of a sensitive one its name at most.
func (r Request) MaskOption(option string) string {
	for _, element := range r.Sensitive {
		for _, secret := range mountopt.Split(element) {
			name, _, hasValue := strings.Cut(secret, "=")
			switch {
			case option != secret && option != element:
			case hasValue:
				return name
			default:
				return masked
			}
		}
	}
	return r.Mask(option)
}
