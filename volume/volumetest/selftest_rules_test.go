package volumetest

import (
	"os"
	"strings"
	"testing"

	"github.com/podvol/podvol/volume/volumetest/internal/harness"
)

// suiteMistake is a suite that is wrong for a plugin that is right.
type suiteMistake struct {
	name   string
	change func(*Suite)
	// says is what the run must say.
	says string
	// fails names the check that fails; empty: the suite itself is refused, or
	// nothing fails.
	fails  string
	passes bool
}

func (m suiteMistake) suite() Suite {
	s := noteSuite()
	m.change(&s)
	return s
}

func suiteMistakes() []suiteMistake {
	waive := func(w Waiver) func(*Suite) { return func(s *Suite) { s.Waivers = []Waiver{w} } }
	wrongContent := func(s *Suite) {
		s.Working[0].Want.Files = map[string]File{noteFile: {Content: "something else"}}
	}
	return []suiteMistake{
		{name: "waiver of an unknown check", change: waive(Waiver{Check: "lifecycle/none", Reason: "known"}),
			says: `check "lifecycle/none", which does not exist`},
		{name: "waiver without a reason", change: waive(Waiver{Check: "lifecycle/setup"}),
			says: "has no reason"},
		{name: "waiver of a check that passes", change: waive(Waiver{Check: "lifecycle/setup", Reason: "known"}),
			says: "passes although it is waived (known); remove the waiver", fails: "lifecycle/setup"},
		{name: "waiver of a case that passes", change: waive(Waiver{Check: "lifecycle/setup", Case: "inline", Reason: "known"}),
			says: "passes although it is waived (known); remove the waiver", fails: "lifecycle/setup"},
		{name: "waiver of a check without cases", change: waive(Waiver{Check: "contract/init", Reason: "known"}),
			says: "passes although it is waived (known); remove the waiver", fails: "contract/init"},
		{name: "no working case", change: func(s *Suite) { s.Working = nil },
			says: "the suite has no working case"},
		{name: "a refused volume that is accepted", change: func(s *Suite) {
			s.Refused = append(s.Refused, RefusedCase{Name: "good", Spec: s.Working[0].Spec, Because: "no reason"})
		}, says: "the volume is not refused", fails: "contract/refused"},
		{name: "a refused volume for another reason", change: func(s *Suite) { s.Refused[0].Because = "no such reason" },
			says: `does not contain "no such reason"`, fails: "contract/refused"},
		{name: "wrong content", change: wrongContent,
			says: `want "something else"`, fails: "lifecycle/setup"},
		{name: "wrong file mode", change: func(s *Suite) {
			s.Working[0].Want.Files = map[string]File{noteFile: {Content: noteText + noteCanary, Mode: 0o600}}
		}, says: "has mode -rw-r-----, want -rw-------", fails: "lifecycle/setup"},
		{name: "wrong owner", change: func(s *Suite) {
			s.Working[0].Want.Files = map[string]File{noteFile: {Content: noteText + noteCanary, UID: new(int64(12345))}}
		}, says: "want 12345", fails: "lifecycle/setup"},
		{name: "missing file", change: func(s *Suite) { s.Working[0].Want.Files["missing"] = File{} },
			says: "the volume does not show a file", fails: "lifecycle/setup"},
		{name: "one file more than wanted", change: func(s *Suite) {
			s.Working[1].Want.Exact = true
			s.Working[1].Prepare = func(n *Node) {
				n.Write(map[string]string{noteFile: noteText + noteCanary, "deep/more": "x"})
			}
		}, says: "the volume shows deep/more, which is not wanted", fails: "lifecycle/setup"},
		{name: "wrong directory mode", change: func(s *Suite) { s.Working[0].Want.Mode = 0o700 },
			says: "has mode -rwxr-xr-x, want -rwx------", fails: "lifecycle/setup"},
		{name: "wrong mount type", change: func(s *Suite) { s.Working[0].Want.Mount = &Mount{FSType: "nfs"} },
			says: "a tmpfs is mounted", fails: "lifecycle/setup"},
		{name: "wrong mount option", change: func(s *Suite) { s.Working[1].Want.Mount = &Mount{Options: []string{"nosuid"}} },
			says: `without "nosuid"`, fails: "lifecycle/setup"},
		{name: "a shared volume called private", change: func(s *Suite) {
			s.Working[1].Spec = noteDirectory(false)
			s.Working[1].Want = Want{}
			s.Working[1].Shared = false
		}, says: "the case says false", fails: "lifecycle/several-pods"},
		{name: "waiver of a defect", change: func(s *Suite) {
			s.Refused[0].Because = "no such reason"
			s.Waivers = []Waiver{{Check: "contract/refused", Case: "another option", Reason: "everybody knows"}}
		}, says: "waived (everybody knows)", passes: true},
		{name: "waiver of a check that gives up", change: func(s *Suite) {
			s.Refused = append(s.Refused, RefusedCase{Name: "good", Spec: s.Working[0].Spec, Because: "no reason"})
			s.Waivers = []Waiver{{Check: "contract/refused", Case: "good", Reason: "everybody knows"}}
		}, says: "waived (everybody knows): the volume is not refused", passes: true},
		{name: "waiver of a defect elsewhere", change: func(s *Suite) {
			s.Refused[0].Because = "no such reason"
			s.Waivers = []Waiver{{Check: "contract/refused", Case: "another option", On: "kernel", Reason: "everybody knows"}}
		}, says: "check contract/refused", fails: "contract/refused"},
		{name: "a waiver for each case", change: func(s *Suite) {
			s.Refused[0].Because, s.Refused[1].Because = "no such reason", "no such reason"
			s.Waivers = []Waiver{
				{Check: "contract/refused", Case: "another option", Reason: "everybody knows"},
				{Check: "contract/refused", Case: "no secret", Reason: "nobody minds"},
			}
		}, says: "waived (nobody minds)", passes: true},
		{name: "the second waiver of a check is not needed", change: func(s *Suite) {
			s.Refused[0].Because = "no such reason"
			s.Waivers = []Waiver{
				{Check: "contract/refused", Case: "another option", Reason: "everybody knows"},
				{Check: "contract/refused", Case: "no secret", Reason: "nobody minds"},
			}
		}, says: "passes although it is waived (nobody minds)", fails: "contract/refused"},
		{name: "a waiver of what never runs", change: waive(Waiver{Check: "contract/init", On: "kernel", Reason: "known"}),
			says: "where it never runs"},
		{name: "a refused volume for any reason", change: func(s *Suite) { s.Refused[0].Because = "" },
			says: "has no Because"},
		{name: "waiver of another case", change: func(s *Suite) {
			s.Refused[0].Because, s.Refused[1].Because = "no such reason", "no such reason"
			s.Waivers = []Waiver{{Check: "contract/refused", Case: "another option", Reason: "everybody knows"}}
		}, says: "check contract/refused", fails: "contract/refused"},
	}
}

// TestSuiteRules runs the kit on the good plugin with suites that are wrong.
func TestSuiteRules(t *testing.T) {
	if os.Getenv(victimVar) != "" {
		return
	}
	for _, m := range suiteMistakes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			v := judge(t, m.name, "^fake$/^(contract|lifecycle)$") // of which the mistakes are
			if v.passed != m.passes {
				t.Errorf("passed: %v, want %v", v.passed, m.passes)
			}
			if !strings.Contains(v.output, m.says) {
				t.Errorf("nothing says %q", m.says)
			}
			if failed := strings.Join(v.failed, " "); !strings.Contains(failed, m.fails) || m.fails == "" && failed != "" {
				t.Errorf("failed: %q, want %q", failed, m.fails)
			}
			if strings.Contains(v.output, "--- SKIP") {
				t.Errorf("a check says that it was skipped")
			}
			if lines := strings.Join(strings.Fields(v.output), " "); m.passes && !strings.Contains(lines, "only because it is waived: contract/refused/") {
				t.Errorf("the end of the run does not say what is waived")
			}
			if t.Failed() {
				t.Log(tail(v.output))
			}
		})
	}
}

func TestWaivedCheckEndsInVirtualTime(t *testing.T) {
	waived := harness.NewWaived("everybody knows")
	k := runner{}.newKit(t, onFake, check{name: "group/check", proves: "It is so."}, waived)
	over, cleaned := false, false
	complete := k.do(func(k *kit) {
		k.bubble(func(k *kit) {
			k.Cleanup(func() { cleaned = true })
			k.Fatal("it is not so")
		})
		over = true
	})
	if complete || over || !cleaned {
		t.Errorf("the check went on after its end: %v, %v; cleaned up: %v", complete, over, cleaned)
	}
	if n := waived.Number(); n != 1 {
		t.Errorf("%d failures, want 1", n)
	}
}

// What is wrong on the fake and on a kernel, as root and as a user, and each time
// that a check looks, is said once.
func TestAFailureIsSaidOnce(t *testing.T) {
	if os.Getenv(victimVar) != "" {
		return
	}
	for name, run := range map[string]string{"everywhere": "^(fake|kernel)$/^(lifecycle|root|user)$", "kernel": "^kernel$"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := judge(t, "wrong content", run)
			for _, check := range []string{"lifecycle/setup", "lifecycle/setup-n-times"} {
				n := strings.Count(v.output, "check "+check+": ")
				if denied := n == 0 && strings.Contains(v.output, "--- SKIP"); n != 1 && !denied {
					t.Errorf("that %s fails is said %d times", check, n)
				}
			}
			if t.Failed() {
				t.Log(tail(v.output))
			}
		})
	}
}
