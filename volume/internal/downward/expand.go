package downward

import "strings"

// Expand returns text with each $(NAME) replaced by NAME's value, and each $$ by $,
// as Kubernetes does in a container's env, command, args and subPathExpr.
//
//   - A name ends at the first closing parenthesis. Names and values are not expanded.
//   - Text that is no reference ("$", "$x", "$(" without its end) stays as it is.
//   - So does a reference whose name has no value. Missing lists these names in order
//     of appearance.
func Expand(text string, value func(name string) (string, bool)) (expanded string, missing []string) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String(), missing
		}
		switch {
		case strings.HasPrefix(rest, "$"):
			b.WriteByte('$')
			text = rest[1:]
		case strings.HasPrefix(rest, "("):
			name, after, closed := strings.Cut(rest[1:], ")")
			if !closed {
				b.WriteString("$(")
				text = rest[1:]
				continue
			}
			v, ok := value(name)
			if !ok {
				missing = append(missing, name)
				v = "$(" + name + ")"
			}
			b.WriteString(v)
			text = after
		default:
			b.WriteByte('$')
			text = rest
		}
	}
}

// Map makes a map the second argument of [Expand].
func Map(values map[string]string) func(name string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	}
}
