package volume

import "time"

// SourceHealthPlugin is implemented by plugins that keep book of whether the
// servers of their volumes answer. Absent: nothing is known of them.
type SourceHealthPlugin interface {
	VolumePlugin
	// SourceHealth returns what is known of the server of a volume, and whether
	// the volume has one. It does no I/O, and never waits for any.
	SourceHealth(*Spec) (SourceHealth, bool)
}

// HealthOf returns what p knows of the volume's server, and whether it keeps
// book of one: false for plugins that are no [SourceHealthPlugin].
func HealthOf(p VolumePlugin, spec *Spec) (SourceHealth, bool) {
	if c, ok := p.(SourceHealthPlugin); ok {
		return c.SourceHealth(spec)
	}
	return SourceHealth{}, false
}

// SourceHealth is what a plugin has found out about one server by the mounts
// that it made, or could not make. It says nothing of volumes that are mounted:
// those are not touched to find out.
type SourceHealth struct {
	// Source is the server as people know it, one spelling for each.
	Source string
	// Answers: as far as is known, new volumes of the server can be mounted. It
	// is false while the plugin refuses them because of the attempts before.
	Answers bool
	// Since is when the first of the Failures began; zero if there are none.
	Since time.Time
	// Failures counts the attempts that had no answer, since the last that had.
	Failures int
	// RetryAt is from when on another attempt is made; zero where Answers. A
	// time that has passed means that an attempt is under way, or that nobody
	// has wanted a volume of the server since.
	RetryAt time.Time
	// Err is why the last of the Failures failed; nil if there are none.
	Err error
}
