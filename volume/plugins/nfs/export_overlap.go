package nfs

import (
	"cmp"
	"path"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
)

var _ volume.SourcePlacer = (*plugin)(nil)

// SharesData reports whether two volumes are the same directory of the same
// server, or one is a directory of the other. A server that goes by two names,
// and two paths that the server makes the same, as NFSv4 does below fsid=0,
// cannot be told to be the same. A source that is refused is one of nobody's
// volumes, unless it may be another spelling of the other's server and path: then
// the error says what is wrong with it.
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

// SourcePlace implements [volume.SourcePlacer].
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
