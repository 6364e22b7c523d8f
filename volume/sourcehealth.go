package volume

import "time"

// SourceHealthPlugin is implemented by plugins that record whether the servers of
// their volumes answer. Absent: nothing is known of the servers.
type SourceHealthPlugin interface {
	VolumePlugin
	// SourceHealth returns the known health of a volume's server, and whether the
	// volume has a server. It does no I/O and never waits for any.
	SourceHealth(*Spec) (SourceHealth, bool)
}

// HealthOf returns the known health of the volume's server, and whether p records
// it. The latter is false for plugins that are no [SourceHealthPlugin].
func HealthOf(p VolumePlugin, spec *Spec) (SourceHealth, bool) {
	if c, ok := p.(SourceHealthPlugin); ok {
		return c.SourceHealth(spec)
	}
	return SourceHealth{}, false
}

// SourceHealth is a plugin's knowledge of one server. It comes from the mounts
// that the plugin made or could not make. It says nothing of mounted volumes: the
// plugin does not touch them to find out.
type SourceHealth struct {
	// Source is the server's name for people. Each server has one spelling.
	Source string
	// Answers says that new volumes of the server can be mounted, as far as is
	// known. It is false while the plugin refuses them because of earlier
	// attempts.
	Answers bool
	// Since is the time at which the first of the Failures began; zero if there
	// are none.
	Since time.Time
	// Failures counts the attempts without an answer since the last attempt with
	// one.
	Failures int
	// RetryAt is the time of the next attempt; zero if Answers. A time in the
	// past means that an attempt is under way, or that no volume of the server
	// was needed since.
	RetryAt time.Time
	// Err is the error of the last of the Failures; nil if there are none.
	Err error
}
