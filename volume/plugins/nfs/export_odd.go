package nfs

import (
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// mayOverlap compares volumes of which at least one has a source that podvol
// refuses. Another node's mount(8) may take it, so it may be every server and path
// that somebody could read it as, and no others: whoever can make a pod can write
// anything there. A volume that has no source at all may be any.
func (p *plugin) mayOverlap(a, b *volume.Spec) bool {
	first, err := p.Source(a)
	if err != nil {
		return true
	}
	second, err := p.Source(b)
	if err != nil {
		return true
	}
	return mayBeSameServer(first.Server, second.Server) && pathsOverlap(readPath(first), readPath(second))
}

// readPath is the path without what podvol refuses: ".." is followed by name, and
// a NUL byte ends the path, as it does in a system call.
func readPath(source *v1.NFSVolumeSource) string {
	given, _, _ := strings.Cut(source.Path, "\x00")
	return path.Clean("/" + given)
}

func mayBeSameServer(a, b string) bool {
	readings := readServer(b)
	return a == b || slices.ContainsFunc(readServer(a), func(reading string) bool { return slices.Contains(readings, reading) })
}

// readServer returns all that a server may be read as: itself, what is left
// without its brackets or port, or one of several, and the addresses that
// inet_aton(3) and those who take all its numbers for decimal find.
func readServer(server string) (readings []string) {
	parts := strings.FieldsFunc(server, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`:/\,[]"'`, r) })
	for _, part := range append(parts, strings.Trim(server, "[] \t\r\n")) {
		if part == "" {
			continue
		}
		readings = append(readings, normalServer(part))
		for _, octal := range []bool{true, false} {
			if addr, ok := readAddress(part, octal); ok {
				readings = append(readings, addr.String())
			}
		}
	}
	return readings
}

// readAddress reads an IPv4 address of one to four numbers, of which the last
// fills what is left, as inet_aton(3) does where octal says that a leading zero
// means base 8.
func readAddress(s string, octal bool) (netip.Addr, bool) {
	parts := strings.Split(strings.TrimSuffix(s, "."), ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var sum uint64
	for i, part := range parts {
		base := 10
		if octal {
			base = 0 // as in C, and 0b, 0o and _, which nobody writes
		}
		n, err := strconv.ParseUint(strings.ToLower(part), base, 32)
		last := i == len(parts)-1
		switch {
		case err != nil, !last && n > 255, last && n >= 1<<(8*(5-len(parts))):
			return netip.Addr{}, false
		case last:
			sum |= n
		default:
			sum |= n << (8 * (3 - i))
		}
	}
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}), true
}
