package volumetest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/nstest"
	"github.com/podvol/podvol/volume"
)

// Run checks the plugin that newPlugin makes against the contract of package
// volume, as sub-tests fake/<check>/<case> on a [mount.FakeMounter], and
// kernel/… with real mounts in a mount namespace of their own: as root and as
// an ordinary user where the tests run as root, else as an ordinary user. The
// package documentation lists the checks. Every check and case gets a new
// plugin, host and directories; newPlugin must share nothing between two
// calls. A failure names the sentence of the contract that it breaks.
//
// For the kernel, Run starts the test binary again for the calling test alone,
// so what the test does before Run is done again; keep it cheap. The caller
// must not use t.Parallel, t.Chdir or t.Setenv, and calls Run once.
func Run(t *testing.T, newPlugin func() volume.VolumePlugin, suite Suite) {
	t.Helper()
	if err := suite.check(allChecks()); err != nil {
		t.Fatalf("the suite is wrong:\n%v", err)
	}
	r := runner{newPlugin: newPlugin, suite: &suite}
	t.Run(string(onFake), func(t *testing.T) { r.runOn(t, onFake) })
	if !slices.ContainsFunc(suite.Working, func(c Case) bool { return c.NoKernel == "" }) {
		t.Logf("not on a kernel: %s", suite.Working[0].NoKernel)
		return
	}
	t.Run(string(onKernel), func(t *testing.T) {
		nstest.Run(t, func(t *testing.T) { r.runOn(t, onKernel) })
	})
}

// runner is one Run.
type runner struct {
	newPlugin func() volume.VolumePlugin
	suite     *Suite
	// memory is where directories are made; empty: on disk.
	memory string
}

func (r runner) runOn(t *testing.T, e environment) {
	r.memory = memoryFor(t, e)
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
	for _, group := range groups {
		t.Run(group[0].group(), func(t *testing.T) {
			for _, c := range group {
				t.Run(c.short(), func(t *testing.T) { r.runCheck(t, e, c) })
			}
		})
	}
}

// unit is one check on one case.
type unit struct {
	name string // of the case; empty for a check that runs once
	run  func(*kit)
}

func (r runner) units(e environment, c check) (units []unit) {
	switch {
	case c.once != nil:
		return []unit{{run: c.once}}
	case c.refused != nil:
		for _, refused := range r.suite.Refused {
			if e == onFake || refused.NoKernel == "" {
				units = append(units, unit{refused.Name, func(k *kit) { c.refused(k, refused) }})
			}
		}
	case c.each != nil:
		for _, working := range r.suite.Working {
			if e == onFake || working.NoKernel == "" {
				units = append(units, unit{working.Name, func(k *kit) { c.each(k, working) }})
			}
		}
	}
	return units
}

func (r runner) runCheck(t *testing.T, e environment, c check) {
	units := r.units(e, c)
	for _, w := range r.suite.Waivers {
		if w.covers(e, c) {
			r.runWaived(t, e, c, w, units)
			return
		}
	}
	for _, u := range units {
		r.runUnit(t, e, c, u, nil)
	}
}

func (w Waiver) covers(e environment, c check) bool {
	return w.Check == c.name && (w.On == "" || w.On == string(e))
}

// runWaived runs the waived units so that they cannot fail, the others as
// usual.
func (r runner) runWaived(t *testing.T, e environment, c check, w Waiver, units []unit) {
	failures := &failures{reason: w.Reason}
	var waived, ran int
	for _, u := range units {
		if w.Case != "" && w.Case != u.name {
			r.runUnit(t, e, c, u, nil)
			continue
		}
		waived++
		if r.runUnit(t, e, c, u, failures) {
			ran++
		}
	}
	// With -run, only some may have run, which says nothing.
	if waived == ran && ran > 0 && failures.none() {
		t.Errorf("check %s passes although it is waived (%s); remove the waiver", c.name, w.Reason)
	}
}

// runUnit reports whether the unit was run at all.
func (r runner) runUnit(t *testing.T, e environment, c check, u unit, waived *failures) (ran bool) {
	run := func(t *testing.T) {
		ran = true
		k := r.newKit(t, e, c, waived)
		defer k.catch()
		u.run(k)
	}
	if u.name == "" {
		u.name = "suite"
	}
	t.Run(u.name, run)
	return ran
}

func (r runner) newKit(t *testing.T, e environment, c check, waived *failures) *kit {
	return &kit{
		reporter: &reporter{TB: t, check: c, waived: waived},
		test:     t, runner: r, on: e,
	}
}
