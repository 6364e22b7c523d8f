package mount

import (
	"cmp"
	"slices"
	"strings"

	"github.com/podvol/podvol/mount/internal/mountopt"
)

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
