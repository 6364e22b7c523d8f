//go:build linux || darwin || freebsd || netbsd || openbsd

package atomicdir

import (
	"context"
	"errors"
	"math"

	"golang.org/x/sys/unix"
)

// leftovers are versions that crashes left and no reader needs.
type leftovers struct {
	// neverCurrent are those that ..data never led to, whole or not. A version
	// whose removal was interrupted counts as one.
	neverCurrent []string
	// outdated were current before the version before the current one.
	outdated []string
}

func (l leftovers) all() []string {
	return append(l.neverCurrent[:len(l.neverCurrent):len(l.neverCurrent)], l.outdated...)
}

// findLeftovers tells versions apart by the times at which something was last
// made in them. A version that is older than the link ..data was complete when
// the current one was: the newest of these is the version before the current
// one, which readers may still use. In doubt, at equal times, a version stays.
func (t *target) findLeftovers(current version, versions []string) (leftovers, error) {
	if !current.exists() {
		return leftovers{neverCurrent: versions}, nil
	}
	if len(versions) <= 1 {
		return leftovers{}, nil
	}
	var st unix.Stat_t
	if err := statAt(t.fd, dataName, &st); err != nil {
		return leftovers{}, t.failed("stat", dataName, err)
	}
	linked, before := st.Mtim.Nano(), int64(math.MinInt64)
	made := make(map[string]int64, len(versions))
	for _, name := range versions {
		err := statAt(t.fd, name, &st)
		if name == current.name || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return leftovers{}, t.failed("stat", name, err)
		}
		made[name] = st.Mtim.Nano()
		if made[name] < linked {
			before = max(before, made[name])
		}
	}
	var found leftovers
	for name, at := range made {
		switch {
		case at > linked:
			found.neverCurrent = append(found.neverCurrent, name)
		case at < before:
			found.outdated = append(found.outdated, name)
		}
	}
	return found, nil
}

// tidy removes what a crash left, where the published version stays. That an
// outdated version cannot be removed is an error of the publication that
// outdates one, not of this.
func (t *target) tidy(ctx context.Context, inv inventory, left leftovers) error {
	if inv.newData {
		if err := t.step(ctx, "remove", newDataName); err != nil {
			return t.published(err)
		}
		if err := t.removeNewData(); err != nil {
			return t.published(err)
		}
	}
	if err := t.removeVersions(ctx, left.neverCurrent, ""); err != nil {
		return t.published(err)
	}
	if err := t.removeVersions(ctx, left.outdated, ""); err != nil && ctx.Err() != nil {
		return t.published(err)
	}
	return nil
}
