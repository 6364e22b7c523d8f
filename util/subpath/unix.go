//go:build unix && !linux

package subpath

// kernel is what the system offers.
type kernel struct{ opener opener }

func system() kernel { return kernel{opener: byName{}} }

// resolve opens a place. The errors are as in [Open].
func (k kernel) resolve(at place) (int, error) { return k.walkTo(at) }

// withoutUmask leaves the umask, which is the process', to setMode.
func (k kernel) withoutUmask(f func()) { f() }
