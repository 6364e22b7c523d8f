package fakemount

import (
	"path"
	"strings"

	"github.com/podvol/podvol/util/pathin"
)

// shownAt finds what a descriptor leads to, of which the kernel only tells where
// it really is: through which of the fake's mounts it was opened is not known.
// It is taken to be the one that shows least around it, and of those that show
// the same the newest. A file that no mount shows but the root is looked up by
// its name.
func (ns *namespace) shownAt(real string) (fakePlace, bool) {
	var at fakePlace
	longest := -1
	for _, m := range ns.mounts { // oldest first
		base := ns.real(fakeDentry{m.super, m.path})
		if m == ns.root || len(base) < longest || !pathin.In(base, real) {
			continue
		}
		longest = len(base)
		at = fakePlace{m, path.Join(m.path, strings.TrimPrefix(real, base))}
	}
	return at, longest >= 0
}
