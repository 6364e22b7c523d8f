// Package volumesource says where a volume's data is, as far as its plugin knows: its place
// in words for people, whether it has files in common with another volume, and whether
// its server answers. A plugin offers each part by an interface of its own.
//
// No function does I/O.
package volumesource

import (
	"time"

	"github.com/podvol/podvol/volume"
)

// Describer is implemented by plugins that can name the place of a volume's
// data for people, such as "10.0.0.1:/export". The text is short and holds no
// secrets. Absent: GetVolumeName is shown.
type Describer interface {
	volume.VolumePlugin
	DescribeSource(*volume.Spec) string
}

// Describe names the place of the volume's data; see [Describer].
func Describe(p volume.VolumePlugin, spec *volume.Spec) string {
	if c, ok := p.(Describer); ok {
		return c.DescribeSource(spec)
	}
	name, err := p.GetVolumeName(spec)
	if err != nil {
		return spec.Name()
	}
	return name
}

// Comparer is implemented by plugins whose volumes can lie within one
// another, as directories do. Absent: two volumes share data if GetVolumeName is
// the same for both.
type Comparer interface {
	volume.VolumePlugin
	// SharesData reports whether the volumes of a and b have files in common. The
	// plugin supports both specs. SharesData does no I/O, so two names of one
	// server look like two servers. It fails only if it cannot compare these two.
	// An invalid source of one volume must not make the comparison of others
	// fail.
	SharesData(a, b *volume.Spec) (bool, error)
}

// SharesData reports whether two volumes have files in common; see
// [Comparer].
func SharesData(p volume.VolumePlugin, a, b *volume.Spec) (bool, error) {
	if c, ok := p.(Comparer); ok {
		return c.SharesData(a, b)
	}
	nameOfA, err := p.GetVolumeName(a)
	if err != nil {
		return false, err
	}
	nameOfB, err := p.GetVolumeName(b)
	return err == nil && nameOfA == nameOfB, err
}

// Placer is implemented by a [Comparer] that can name the place of a
// volume's data. A search for the volumes that share data with one volume then
// need not compare it with every other. Absent: it is compared with each.
type Placer interface {
	Comparer
	// SourcePlace returns the storage that holds the data, such as a server, and
	// the clean path of the data on it. Volumes can share data only if both rules
	// hold:
	//
	//   - on is the same.
	//   - The paths are the same, or one lies below the other.
	//
	// SharesData decides even then. SourcePlace fails for a source that the
	// plugin refuses; SharesData compares such a source with each volume.
	// SourcePlace does no I/O.
	SourcePlace(*volume.Spec) (on, path string, err error)
}

// Place returns the place of a volume's data; see [Placer].
func Place(p volume.VolumePlugin, spec *volume.Spec) (on, path string, err error) {
	switch c := p.(type) {
	case Placer:
		return c.SourcePlace(spec)
	case Comparer:
		return "", "/", nil
	}
	name, err := p.GetVolumeName(spec)
	return name, "/", err
}

// HealthPlugin is implemented by plugins that record whether the servers of
// their volumes answer. Absent: nothing is known of the servers.
type HealthPlugin interface {
	volume.VolumePlugin
	// SourceHealth returns the known health of a volume's server, and whether the
	// volume has a server. It does no I/O and never waits for any.
	SourceHealth(*volume.Spec) (Health, bool)
}

// HealthOf returns the known health of the volume's server, and whether p records
// it. The latter is false for plugins that are no [HealthPlugin].
func HealthOf(p volume.VolumePlugin, spec *volume.Spec) (Health, bool) {
	if c, ok := p.(HealthPlugin); ok {
		return c.SourceHealth(spec)
	}
	return Health{}, false
}

// Health is a plugin's knowledge of one server. It comes from the mounts
// that the plugin made or could not make. It says nothing of mounted volumes: the
// plugin does not touch them to find out.
type Health struct {
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
