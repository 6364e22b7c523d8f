package volumetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/harness"
	"github.com/podvol/podvol/volume/volumetest/internal/memdir"
)

// Run checks the plugin that newPlugin makes against the contract of package
// volume, as sub-tests fake/<check>/<case> on a [fakemount.Mounter], and
// kernel/… with real mounts in a mount namespace of their own: as root and as
// an ordinary user where the tests run as root, else as an ordinary user. What
// fails in one of these places is not run in the next, where it would be said again. The
// package documentation lists the checks. Every check and case gets a new
// plugin, host and directories; newPlugin must share nothing between two
// calls. A failure names the sentence of the contract that it breaks. Time is
// virtual in many checks, which fail if a goroutine of the plugin outlives
// them: neither Init nor a call may leave one.
//
// For the kernel, Run starts the test binary again for the calling test alone,
// so what the test does before Run is done again; keep it cheap. The caller
// must not use t.Parallel, t.Chdir or t.Setenv, and calls Run once.
func Run(t *testing.T, newPlugin func() volume.VolumePlugin, suite Suite) {
	t.Helper()
	suite.findBlocks(t)
	if err := suite.check(allChecks(), newPlugin()); err != nil {
		t.Fatalf("the suite is wrong:\n%v", err)
	}
	r := runner{newPlugin: newPlugin, suite: &suite}
	if !t.Run(string(onFake), func(t *testing.T) { r.runOn(t, onFake) }) {
		t.Logf("not on a kernel, where most of it would fail again: mend it, or give -run %s/%s", t.Name(), onKernel)
		return
	}
	if !suite.onKernel() {
		t.Logf("not on a kernel: %s", suite.Working[0].NoKernel)
		return
	}
	t.Run(string(onKernel), r.runOnKernel)
}

// runOnKernel runs as root and as an ordinary user, unless it has failed as root.
func (r runner) runOnKernel(t *testing.T) {
	for _, mode := range []nstest.Mode{nstest.Root, nstest.User} {
		nstest.RunAs(t, []nstest.Mode{mode}, func(t *testing.T) { r.runOn(t, onKernel) })
		if t.Failed() {
			return
		}
	}
}

// runner is one Run.
type runner struct {
	newPlugin func() volume.VolumePlugin
	suite     *Suite
	// memory is where directories are made; empty: on disk.
	memory string
}

func (r runner) runOn(t *testing.T, e environment) {
	if e == onKernel {
		r.memory = memdir.Mount(t)
	} else {
		r.memory = memdir.New(t)
	}
	p := r.newPlugin()
	var groups [][]check
	absent := map[string]bool{}
	for _, c := range allChecks() {
		switch last := len(groups) - 1; {
		case !c.runsOn(e):
		case c.needs != nil && !c.needs.has(p):
			absent[c.needs.name] = true
		case last >= 0 && groups[last][0].group() == c.group():
			groups[last] = append(groups[last], c)
		default:
			groups = append(groups, []check{c})
		}
	}
	if len(absent) > 0 {
		t.Logf("checks are left out that need: %s", strings.Join(slices.Sorted(maps.Keys(absent)), ", "))
	}
	var waived []string
	for _, group := range groups {
		t.Run(group[0].group(), func(t *testing.T) {
			for _, c := range group {
				t.Run(c.short(), func(t *testing.T) { waived = append(waived, r.runCheck(t, e, c)...) })
			}
		})
	}
	if len(waived) > 0 {
		t.Logf("passes only because it is waived:\n%s", strings.Join(waived, "\n"))
	}
}

// unit is one check on one case.
type unit struct {
	name string // of the case; empty for a check that runs once
	run  func(*kit)
	// waiver is the one that covers it; nil: none.
	waiver *Waiver
	waived *harness.Waived // nil: it is not
	ran    bool
}

func (u *unit) title() string {
	if u.name == "" {
		return "suite"
	}
	return u.name
}

func (r runner) units(e environment, c check) (units []*unit) {
	switch {
	case c.once != nil:
		return []*unit{{run: c.once}}
	case c.refused != nil:
		for _, refused := range r.suite.Refused {
			if e == onFake || refused.NoKernel == "" {
				units = append(units, &unit{name: refused.Name, run: func(k *kit) { c.refused(k, refused) }})
			}
		}
	case c.storage != nil:
		for _, storage := range r.suite.Storage {
			if e == onFake || storage.NoKernel == "" {
				units = append(units, &unit{name: storage.Name, run: func(k *kit) { c.storage(k, storage) }})
			}
		}
	case c.each != nil:
		for _, working := range r.suite.Working {
			if working.block == c.block && (e == onFake || working.NoKernel == "") {
				units = append(units, &unit{name: working.Name, run: func(k *kit) { c.each(k, working) }})
			}
		}
	}
	return units
}

// runCheck returns what passes only because it is waived.
func (r runner) runCheck(t *testing.T, e environment, c check) (waived []string) {
	units := r.units(e, c)
	for _, u := range units {
		u.waiver = r.waiverOf(e, c, u)
		r.runUnit(t, e, c, u)
		if u.waived.Number() > 0 {
			waived = append(waived, fmt.Sprintf("%s/%s: %s", c.name, u.title(), u.waiver.Reason))
		}
	}
	for i := range r.suite.Waivers {
		assertNeeded(t, &r.suite.Waivers[i], c, units)
	}
	return waived
}

// waiverOf returns the unit's waiver; a suite has one at most.
func (r runner) waiverOf(e environment, c check, u *unit) *Waiver {
	for i := range r.suite.Waivers {
		if w := &r.suite.Waivers[i]; w.covers(e, c, u) {
			return w
		}
	}
	return nil
}

func (w Waiver) covers(e environment, c check, u *unit) bool {
	return w.Check == c.name && (w.On == "" || w.On == string(e)) && (w.Case == "" || w.Case == u.name)
}

// assertNeeded fails if nothing that the waiver covers has failed.
func assertNeeded(t *testing.T, w *Waiver, c check, units []*unit) {
	t.Helper()
	waived := 0
	for _, u := range units {
		if u.waiver != w {
			continue
		}
		// With -run, only some may have run, which says nothing.
		if !u.ran || u.waived.Number() > 0 {
			return
		}
		waived++
	}
	if waived > 0 {
		t.Errorf("check %s passes although it is waived (%s); remove the waiver", c.name, w.Reason)
	}
}

// runUnit runs a waived unit so that it cannot fail, others as usual.
func (r runner) runUnit(t *testing.T, e environment, c check, u *unit) {
	if u.waiver != nil {
		u.waived = harness.NewWaived(u.waiver.Reason)
	}
	t.Run(u.title(), func(t *testing.T) {
		u.ran = true
		r.newKit(t, e, c, u.waived).do(u.run)
		if n := u.waived.Number(); n > 0 {
			t.Logf("passes only because it is waived (%s); failures: %d", u.waiver.Reason, n)
		}
	})
}

func (r runner) newKit(t *testing.T, e environment, c check, waived *harness.Waived) *kit {
	return &kit{T: harness.New(t, c.String(), r.memory, waived), runner: r, on: e}
}
