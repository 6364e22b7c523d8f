package nfs

import (
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// mayOverlap compares volumes of which at least one has a source that podvol
// refuses. Another node's mount(8) may take it, so it may be every server and
// path that a program could read it as. It may be no other: a user who can make a
// pod can write anything there. A volume without a source may be any.
func (p *plugin) mayOverlap(a, b *volume.Spec) bool {
	first, err := p.Source(a)
	if err != nil {
		return true
	}
	second, err := p.Source(b)
	if err != nil {
		return true
	}
	others := readSource(second)
	return slices.ContainsFunc(readSource(first), func(r reading) bool { return slices.ContainsFunc(others, r.overlaps) })
}

// reading is one way to read a source.
type reading struct{ server, path string }

func (r reading) overlaps(other reading) bool {
	return pathsOverlap(r.path, other.path) && mayBeSameServer(r.server, other.server)
}

const (
	// maxSource is the length in bytes beyond which mount(2) takes no source.
	maxSource = 4096
	// maxColons is more than a real source has: an address has
	// seven, and one before its port or path.
	maxColons = 32
)

// readSource returns all readings of a source. A server that is none may have
// part of the path in it, or the path part of the server, since mount(8) gets
// both as one text, server:path. The kernel and mount.nfs(8) split that at the
// first colon that is not in brackets; programs that take lists, and others, at
// another.
func readSource(source *v1.NFSVolumeSource) []reading {
	all := []reading{{source.Server, readPath(source.Path)}}
	if _, err := parseServer(source.Server); err == nil {
		return all
	}
	add := func(server, dir string) {
		all = append(all, reading{server, readPath(dir)})
		if end := strings.IndexAny(dir, ":,?# \t\r\n"); end > 0 { // the next of a list, or the options of a URL
			all = append(all, reading{server, readPath(dir[:end])})
		}
	}
	text := source.Server + ":" + source.Path
	if server, dir := readURL(text); dir != "" {
		add(server, dir)
	}
	for colon, n := -1, 0; n < maxColons; n++ {
		next := strings.IndexByte(text[colon+1:], ':')
		if next < 0 {
			break
		}
		colon += 1 + next
		add(text[:colon], text[colon+1:])
	}
	return all
}

// readURL reads nfs://server:port/path, as newer mount.nfs(8) do, with or without
// the scheme.
func readURL(text string) (server, dir string) {
	if _, rest, ok := strings.Cut(text, "://"); ok {
		text = rest
	}
	server, dir, _ = strings.Cut(strings.TrimLeft(text, "/"), "/")
	if plain, err := url.PathUnescape(dir); err == nil {
		dir = plain
	}
	return server, dir
}

// readPath is the path without what podvol refuses: ".." is followed by name, and
// a NUL byte ends the path, as it does in a system call.
func readPath(given string) string {
	given, _, _ = strings.Cut(given, "\x00")
	return path.Clean("/" + given)
}

func mayBeSameServer(a, b string) bool {
	readings := readServer(b)
	return a == b || slices.ContainsFunc(readServer(a), func(reading string) bool { return slices.Contains(readings, reading) })
}

// readServer returns all readings of a server: only itself, or, where it is none,
// the text without its brackets, port or zone, or one of several, and the
// addresses that inet_aton(3) and programs that take all numbers for decimal
// find.
func readServer(given string) (readings []string) {
	if server, err := parseServer(given); err == nil {
		return []string{hostOf(server)}
	}
	given, _, _ = strings.Cut(given, "\x00")
	if len(given) > maxSource {
		return nil
	}
	for _, field := range strings.FieldsFunc(given, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`/\,[]"'@`, r) }) {
		parts := strings.Split(field, ":")
		if port := strings.LastIndexByte(field, ':'); port >= 0 {
			parts = append(parts, field, field[:port])
		}
		for _, part := range parts {
			readings = append(readings, readHost(part)...)
			if name, _, zoned := strings.Cut(part, "%"); zoned {
				readings = append(readings, readHost(name)...)
			}
		}
	}
	return readings
}

func readHost(host string) (readings []string) {
	if host == "" {
		return nil
	}
	readings = append(readings, hostOf(host))
	for _, octal := range []bool{true, false} {
		if addr, ok := readAddress(host, octal); ok {
			readings = append(readings, addr.String())
		}
	}
	return readings
}

// readAddress reads an IPv4 address of one to four numbers, of which the last
// fills the rest, like inet_aton(3); octal: a leading zero means base 8.
func readAddress(s string, octal bool) (netip.Addr, bool) {
	parts := strings.Split(strings.TrimSuffix(s, "."), ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var sum uint64
	for i, part := range parts {
		base := 10
		if octal {
			base = 0 // as in C, and 0b, 0o and _, which are never written
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
