package mount

import "strings"

// noCanonicalize is the flag that keeps mount(8) from looking up by name what a
// descriptor leads to: the name may lead elsewhere by then.
const noCanonicalize = "--no-canonicalize"

// isDescriptor reports whether a path is a link of /proc that stands for a
// descriptor of a process: /proc/<pid>/fd/<number>.
func isDescriptor(p string) bool {
	parts := strings.Split(p, "/")
	return len(parts) == 5 && parts[0] == "" && parts[1] == "proc" && parts[3] == "fd"
}
