// Package expand replaces references to variables in text as Kubernetes does
// in a container's env, command, args and subPathExpr: $(NAME) is the value of
// NAME, and $$ a dollar that begins no reference.
//
// Like every package below util, it carries no promise of compatibility.
package expand

import "strings"

// Expand returns text with each $(NAME) replaced by what value says of NAME,
// and each $$ by $. A name ends at the first closing parenthesis, and is never
// expanded itself; neither is a value. What is no reference ("$", "$x", "$("
// without its end) stays as it is. So does a reference whose name has no
// value; missing lists these names in order of appearance, for callers that
// take that for an error. It never fails.
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
