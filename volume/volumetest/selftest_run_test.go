package volumetest

import (
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumetest/internal/memdir"
)

// broken is a plugin with one defect.
type broken struct {
	// defect says what is wrong with it.
	defect string
	// breaks is the check that is there for this defect, also are those that
	// fail as a consequence.
	breaks string
	also   []string
	// maybe are those whose failure is a matter of scheduling.
	maybe []string
	alter func() alteration
	// plugin, if not nil, is used instead of alter.
	plugin func() volume.VolumePlugin
	// suite, if not nil, changes note's.
	suite func(*Suite)
	// on is where it runs; empty: on the fake.
	on environment
}

// victimVar names the broken plugin that TestVictim runs the kit on.
const victimVar = "VOLUMETEST_VICTIM"

// TestVictim fails on purpose: the tests below run it in processes of its own,
// since a testing.T that fails cannot be kept from failing its parents.
func TestVictim(t *testing.T) {
	name := os.Getenv(victimVar)
	if name == "" {
		return
	}
	for _, b := range allBroken() {
		if b.defect == name {
			b.run(t)
			return
		}
	}
	for _, m := range suiteMistakes() {
		if m.name == name {
			Run(t, newNote, m.suite())
			return
		}
	}
	t.Fatalf("there is no victim %q", name)
}

func (b broken) run(t *testing.T) {
	suite := noteSuite()
	if b.suite != nil {
		b.suite(&suite)
	}
	plugin := b.plugin
	if plugin == nil {
		plugin = altered(b.alter)
	}
	Run(t, plugin, suite)
}

// verdict is what the kit said.
type verdict struct {
	failed []string // checks, sorted
	output string
	passed bool
}

var (
	// failedCheck finds TestVictim/fake/group/check, and on a kernel
	// TestVictim/kernel/root/group/check.
	failedCheck = regexp.MustCompile(`(?m)^ +--- FAIL: TestVictim/(?:fake|kernel/[a-z]+)/([a-z0-9-]+/[a-z0-9-]+) \(`)
	// crashed finds what ends a process: the rest of the checks did not run.
	crashed = regexp.MustCompile(`(?m)^(panic: .*|fatal error: .*)`)
)

// judge runs the kit on a victim in another process; run selects its sub-tests.
func judge(t *testing.T, victim, run string) verdict {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestVictim$/"+run, "-test.v=true", "-test.timeout=5m")
	// The race detector makes each process wait for a second at its end.
	cmd.Env = append([]string{"GORACE=atexit_sleep_ms=20"}, os.Environ()...)
	// What a broken plugin leaves is removed with this directory.
	cmd.Env = append(cmd.Env, victimVar+"="+victim, "TMPDIR="+memoryTempDir(t))
	out, err := cmd.CombinedOutput()
	v := verdict{output: string(out), passed: err == nil}
	failed := map[string]bool{}
	for _, m := range failedCheck.FindAllStringSubmatch(v.output, -1) {
		failed[m[1]] = true
	}
	v.failed = slices.Sorted(maps.Keys(failed))
	if m := crashed.FindString(v.output); m != "" {
		t.Errorf("the kit did not come to its end: %s\n%s", m, tail(v.output))
	}
	return v
}

// memoryTempDir is t.TempDir, in memory where that can be.
func memoryTempDir(t *testing.T) string {
	t.Helper()
	if !memdir.IsMemory(memdir.Dir) {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(memdir.Dir, "selftest-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func tail(text string) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// TestDefectsAreFound runs the kit on every broken plugin.
func TestDefectsAreFound(t *testing.T) {
	if os.Getenv(victimVar) != "" {
		return
	}
	sentences := map[string]string{}
	for _, c := range allChecks() {
		sentences[c.name] = c.proves
	}
	defects := allBroken()
	if testtool.Shortened() { // a process each: of those with goroutines of their own every third
		defects = nil
		all := slices.Concat(brokenFaults(), brokenRetry(), brokenCrash(), brokenCancel(), brokenConcurrency())
		for third := range slices.Chunk(all, 3) {
			defects = append(defects, third[0])
		}
	}
	for _, b := range defects {
		t.Run(b.defect, func(t *testing.T) {
			t.Parallel()
			on := b.on
			if on == "" {
				on = onFake
			}
			v := judge(t, b.defect, "^"+string(on)+"$")
			want := slices.Sorted(slices.Values(append([]string{b.breaks}, b.also...)))
			v.failed = slices.DeleteFunc(v.failed, func(name string) bool { return slices.Contains(b.maybe, name) })
			if diff := cmp.Diff(want, v.failed); diff != "" {
				t.Errorf("checks that fail (-want +got):\n%s\n%s", diff, tail(v.output))
			}
			if says := "check " + b.breaks + ": " + sentences[b.breaks]; !strings.Contains(v.output, says) {
				t.Errorf("no failure carries the sentence %q", says)
			}
		})
	}
}

// TestEveryCheckFindsADefect fails for a check that has yet to be seen to fail.
func TestEveryCheckFindsADefect(t *testing.T) {
	found := map[string]bool{}
	for _, b := range allBroken() {
		found[b.breaks] = true
	}
	for _, c := range allChecks() {
		if !found[c.name] {
			t.Errorf("no broken plugin is made for check %s: %s", c.name, c.proves)
		}
		delete(found, c.name)
	}
	for name := range found {
		t.Errorf("a broken plugin is made for check %s, which does not exist", name)
	}
}

// allBroken lists the broken plugins, by the groups of the checks.
func allBroken() []broken {
	return slices.Concat(
		brokenContract(),
		brokenLifecycle(),
		brokenRestart(),
		brokenFaults(),
		brokenRetry(),
		brokenCrash(),
		brokenCancel(),
		brokenConcurrency(),
		brokenHostility(),
		brokenOwnership(),
		brokenMetrics(),
		brokenDisks(),
	)
}
