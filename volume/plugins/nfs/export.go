package nfs

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/sharedirs"
	"github.com/podvol/podvol/volume/validation"
	"github.com/podvol/podvol/volume/volumesource"
)

// export is one directory of one server.
type export struct {
	server string // a name or an address, an IPv6 literal without brackets
	path   string // absolute
}

// parseExport checks a source of a manifest. An IPv6 literal may come with or
// without brackets, and with a zone. Errors are *[volume.InvalidSpecError]s or
// what [mount.CheckSource] returns.
func parseExport(source *v1.NFSVolumeSource) (export, error) {
	server, err := parseServer(source.Server)
	if err != nil {
		return export{}, err
	}
	if err := validation.CheckAbsolutePath("nfs.path", source.Path); err != nil {
		return export{}, err
	}
	if sharedirs.InBook(source.Path) {
		return export{}, volume.Invalid("nfs.path", `is %q; what is in ".podvol" says which directories of the share are whose, and is no volume`, source.Path)
	}
	e := export{server: server, path: source.Path}
	if err := mount.CheckSource(e.String()); err != nil {
		return export{}, volume.NothingDone(fmt.Errorf("nfs source: %w", err))
	}
	return e, nil
}

func parseServer(given string) (string, error) {
	if given == "" {
		return "", volume.Invalid("nfs.server", "is required")
	}
	server, bracketed := unbracket(given)
	if !bracketed && !strings.Contains(server, ":") {
		if _, err := netip.ParseAddr(server); err != nil && isNumeric(server) {
			return "", volume.Invalid("nfs.server",
				"%q is an address in no spelling that all agree on; write its four numbers, decimal and without zeros before them", given)
		}
		return server, checkHostName(server)
	}
	// Whatever has brackets or a colon must be an IPv6 address, else the source
	// would name another server or path than the manifest seems to.
	addr, err := netip.ParseAddr(server)
	if err != nil || !addr.Is6() {
		return "", volume.Invalid("nfs.server",
			`%q is neither a host name nor an IPv4 or IPv6 address; a port belongs into the mount option "port="`, given)
	}
	return server, checkHostName(addr.Zone())
}

// isNumeric reports whether a name ends in a number, decimal or hexadecimal:
// resolvers take such for addresses (inet_aton(3)), so that 10.1 and 167772161
// are 10.0.0.1, and no name of RFC 1123 (2.1) is one. The URL standard tells
// names from addresses by the same rule.
func isNumeric(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	last := name[strings.LastIndexByte(name, '.')+1:]
	if hexadecimal, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hexadecimal, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

func unbracket(server string) (string, bool) {
	if inner, ok := strings.CutPrefix(server, "["); ok {
		if inner, ok := strings.CutSuffix(inner, "]"); ok {
			return inner, true
		}
	}
	return server, false
}

// checkHostName refuses names that cannot be part of a source: names are resolved
// when they are mounted, by a resolver that knows best what a name may be. Only
// an IPv6 address has a zone.
func checkHostName(server string) error {
	if strings.ContainsFunc(server, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`/\,[]"'%`, r) }) {
		return volume.Invalid("nfs.server", "%q has a character that no host name has", server)
	}
	return nil
}

// String is the mount source: server:/path, an IPv6 literal in brackets.
func (e export) String() string {
	if strings.Contains(e.server, ":") {
		return "[" + e.server + "]:" + e.path
	}
	return e.server + ":" + e.path
}

// parseTableSource reads what the mount table shows as an NFS mount's source.
func parseTableSource(source string) (export, bool) {
	server, path, ok := strings.Cut(source, ":/")
	if !ok || server == "" {
		return export{}, false
	}
	server, _ = unbracket(server)
	return export{server: server, path: "/" + path}, true
}

// same reports whether two exports are the same, however they are spelt.
func (e export) same(other export) bool { return e.normal() == other.normal() }

// normal is the one spelling of an export: its server has one, and the kernel
// drops superfluous slashes at the end of a path.
func (e export) normal() export {
	path := strings.TrimRight(e.path, "/")
	if path == "" {
		path = "/"
	}
	return export{server: normalServer(e.server), path: path}
}

// normalServer is the one spelling of a server: case means nothing in a name, nor
// does the dot that ends it, and an address can be written in several ways, an
// IPv4 address as an IPv6 address too.
func normalServer(server string) string {
	server = normalName(server)
	if addr, err := netip.ParseAddr(server); err == nil {
		return addr.Unmap().String()
	}
	return server
}

var _ volumesource.Placer = (*plugin)(nil)

// SharesData reports whether two volumes are the same directory of the same
// server, or one is a directory of the other. A server that goes by two names,
// and two paths that the server makes the same, as NFSv4 does below fsid=0,
// cannot be told to be the same. A refused source shares nothing, unless it may
// be another spelling of the other's server and path: then the error is its
// refusal.
func (p *plugin) SharesData(a, b *volume.Spec) (bool, error) {
	first, errA := p.exportOf(a)
	second, errB := p.exportOf(b)
	if err := cmp.Or(errA, errB); err != nil {
		if p.mayOverlap(a, b) {
			return false, err
		}
		return false, nil
	}
	return first.overlaps(second), nil
}

// SourcePlace implements [volumesource.Placer].
func (p *plugin) SourcePlace(spec *volume.Spec) (on, dir string, err error) {
	e, err := p.exportOf(spec)
	if err != nil {
		return "", "", err
	}
	on, dir = e.place()
	return on, dir, nil
}

// place is where the data of an export is.
func (e export) place() (host, dir string) { return hostOf(e.server), path.Clean(e.path) }

// hostOf is the one spelling of a server, without the zone of an address: it says by
// which of its links a node reaches the server, and each node names its own.
func hostOf(server string) string {
	server = normalServer(server)
	if addr, ok := addressOf(server); ok {
		return addr.String()
	}
	return server
}

func (p *plugin) exportOf(spec *volume.Spec) (export, error) {
	source, err := p.Source(spec)
	if err != nil {
		return export{}, err
	}
	return parseExport(source)
}

// overlaps reports whether one of two exports holds the other.
func (e export) overlaps(other export) bool {
	host, dir := e.place()
	otherHost, otherDir := other.place()
	return host == otherHost && pathin.Overlap(dir, otherDir)
}

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
	return pathin.Overlap(r.path, other.path) && mayBeSameServer(r.server, other.server)
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

// endpoint is one service of a server: mounts from the same endpoint go the same
// way.
type endpoint struct {
	server string // as in export.normal
	// options are the mount options that lead elsewhere than to the usual
	// service, sorted and separated by commas.
	options string
}

// String is the server, and the options after it.
func (e endpoint) String() string {
	if e.options == "" {
		return e.server
	}
	return e.server + " (" + e.options + ")"
}

func endpointOf(e export, options []string) endpoint {
	var ways []string
	for _, given := range options {
		for o := range strings.SplitSeq(given, ",") {
			if way := wayOf(strings.TrimSpace(o)); way != "" {
				ways = append(ways, way)
			}
		}
	}
	slices.Sort(ways)
	return endpoint{e.normal().server, strings.Join(slices.Compact(ways), ",")}
}

// wayOf returns what an option says of the way to the server (nfs(5)), or
// nothing. NFSv3 asks more services of the server than the others.
func wayOf(option string) string {
	name, value, _ := strings.Cut(option, "=")
	switch name {
	case "port", "addr", "mountaddr", "mounthost", "mountport", "mountproto", "udp", "rdma":
		return option
	case "proto":
		if value != "tcp" {
			return option
		}
	case "vers", "nfsvers":
		if value == "3" {
			return "vers=3"
		}
	case "v3":
		return "vers=3"
	}
	return ""
}
