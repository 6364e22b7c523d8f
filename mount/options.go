package mount

import (
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
