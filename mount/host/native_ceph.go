package host

import (
	"net/netip"
	"slices"
	"strings"
)

// cephNeedsHelper says why mount.ceph has to mount a file system of Ceph, or nothing: the kernel
// takes only a key and addresses.
func cephNeedsHelper(source string, options []string) string {
	monitors, _, _ := strings.Cut(source, ":/")
	for monitor := range strings.SplitSeq(monitors, ",") {
		_, err := netip.ParseAddrPort(monitor)
		if _, bare := netip.ParseAddr(monitor); err != nil && bare != nil {
			return "ceph is mounted by a helper program, unless all monitors are addresses"
		}
	}
	hasKey := slices.ContainsFunc(options, func(o string) bool { return strings.HasPrefix(o, "secret=") || strings.HasPrefix(o, "key=") })
	if !hasKey {
		return "ceph is mounted by a helper program, unless the key is given"
	}
	return ""
}
