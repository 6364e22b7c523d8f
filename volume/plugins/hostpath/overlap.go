package hostpath

import (
	"path/filepath"

	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
)

// SharesData reports whether two volumes are the same path, or one lies in the
// other, by their names alone: links are not followed. Volumes inside a pod's
// inline hostPath do not count: a pod that looks at the whole node, like a
// monitor, uses no other pod's volume.
func (p *plugin) SharesData(a, b *volume.Spec) (bool, error) {
	first, err := p.Source(a)
	if err != nil {
		return false, err
	}
	second, err := p.Source(b)
	if err != nil {
		return false, err
	}
	x, y := filepath.Clean(first.Path), filepath.Clean(second.Path)
	if a.PersistentVolume == nil && pathin.Strictly(x, y) || b.PersistentVolume == nil && pathin.Strictly(y, x) {
		return false, nil
	}
	return overlap(x, y), nil
}

// overlap reports whether one of two paths is the other or lies in it.
func overlap(a, b string) bool {
	_, holds := pathin.Cut(a, b)
	_, within := pathin.Cut(b, a)
	return holds || within
}

// SourcePlace implements [volumesource.Placer].
func (p *plugin) SourcePlace(spec *volume.Spec) (on, path string, err error) {
	source, err := p.Source(spec)
	if err != nil {
		return "", "", err
	}
	return "", filepath.Clean(source.Path), nil
}
