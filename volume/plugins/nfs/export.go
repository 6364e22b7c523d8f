package nfs

import (
	"cmp"
	"fmt"
	"net/netip"
	"path"
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
	return host == otherHost && pathsOverlap(dir, otherDir)
}

func pathsOverlap(a, b string) bool {
	_, above := pathin.Cut(a, b)
	_, beneath := pathin.Cut(b, a)
	return above || beneath
}
