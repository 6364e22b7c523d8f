package sharedirs

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Names of the variables, those that csi-driver-nfs knows.
const (
	ClaimName      = "pvc.metadata.name"
	ClaimNamespace = "pvc.metadata.namespace"
	VolumeName     = "pv.metadata.name"
)

const (
	// maxElement is NAME_MAX, maxPath well below PATH_MAX, so that the share's
	// own path has room before it.
	maxElement = 255
	maxPath    = 2048
)

// pathError says why a template, or a path, is refused. Nothing was touched.
type pathError struct {
	// template is the template, or the path where there is none; reason says why it
	// is refused and how to mend it.
	template, reason string
}

func (e *pathError) Error() string { return fmt.Sprintf("%q is refused: %s", e.template, e.reason) }

// Expand makes the path of a directory below a base from a storage class's
// template, such as "${pvc.metadata.namespace}/${pvc.metadata.name}": each ${name}
// is replaced by the variable's value. The result is a path that [CheckRelative]
// accepts. Refused are:
//
//   - a variable that is not in values, or is empty,
//   - a value that is more than a part of one path element,
//   - a variable that is not ended; a "$" before anything but "{" is itself.
//
// Users choose the names of their claims. In CVE-2026-3864 a path with ".." led a
// provisioner's deletion out of its share; here no value can add an element to
// the path, and no path can leave its base.
func Expand(template string, values map[string]string) (string, error) {
	refuse := func(format string, args ...any) (string, error) {
		return "", &pathError{template: template, reason: fmt.Sprintf(format, args...)}
	}
	var path strings.Builder
	rest := template
	for {
		literal, after, more := strings.Cut(rest, "${")
		path.WriteString(literal)
		if !more {
			break
		}
		name, after, ended := strings.Cut(after, "}")
		if !ended {
			return refuse(`"${" has no "}" after it`)
		}
		value, known := values[name]
		if !known {
			return refuse("${%s} is no variable; there are %s", name, names(values))
		}
		if reason := checkValue(value); reason != "" {
			return refuse("${%s} %s", name, reason)
		}
		path.WriteString(value)
		rest = after
	}
	if err := CheckRelative(path.String()); err != nil {
		e := err.(*pathError)
		if e.template == template {
			return "", e
		}
		return refuse("it makes %q, and %s", e.template, e.reason)
	}
	return path.String(), nil
}

func names(values map[string]string) string {
	var all []string
	for name := range values {
		all = append(all, "${"+name+"}")
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// checkValue says why a value cannot stand in a path.
func checkValue(value string) string {
	switch {
	case value == "":
		return "is empty here"
	case value == "." || value == "..":
		return fmt.Sprintf("is %q here, which names another directory", value)
	case strings.Contains(value, "/"):
		return fmt.Sprintf("is %q here; a name must not contain a slash", value)
	}
	return ""
}

// CheckRelative refuses all but the one spelling of a path below a directory:
// empty or absolute paths, empty, "." and ".." elements, elements of more than
// 255 bytes, paths of more than 2048, control characters, invalid UTF-8, and
// backslashes, which separate elements for some servers.
func CheckRelative(path string) error {
	refuse := func(format string, args ...any) error {
		return &pathError{template: path, reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case path == "":
		return refuse("the path is empty; it must name a directory")
	case path[0] == '/':
		return refuse("the path must be relative")
	case len(path) > maxPath:
		return refuse("the path has %d bytes, at most %d are allowed", len(path), maxPath)
	case !utf8.ValidString(path):
		return refuse("the path must be UTF-8")
	case strings.ContainsFunc(path, func(r rune) bool { return unicode.IsControl(r) || r == '\\' }):
		return refuse("the path must have neither control characters nor backslashes")
	}
	for element := range strings.SplitSeq(path, "/") {
		switch {
		case element == "":
			return refuse("the path has an empty element: no slash at its end, no two in a row")
		case element == "." || element == "..":
			return refuse("the path must not have the element %q", element)
		case len(element) > maxElement:
			return refuse("an element has %d bytes, at most %d are allowed", len(element), maxElement)
		}
	}
	return nil
}
