package volumetest

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
)

var update = flag.Bool("update", false, "rewrite the list of checks in the package documentation")

const listFile = "doc_checks.go"

func listOfChecks() string {
	var b strings.Builder
	b.WriteString("// # The checks\n//\n")
	for _, c := range allChecks() {
		fmt.Fprintf(&b, "//   - %s: %s%s\n", c.name, c.proves, c.notes())
	}
	b.WriteString("package volumetest\n")
	return b.String()
}

func (c check) notes() string {
	var notes []string
	if c.fakeOnly {
		notes = append(notes, "on the fake only")
	}
	if c.needs != nil {
		notes = append(notes, "of every "+c.needs.name)
	}
	if len(notes) == 0 {
		return ""
	}
	return " (" + strings.Join(notes, "; ") + ")"
}

func TestListOfChecks(t *testing.T) {
	want := listOfChecks()
	if *update {
		if err := os.WriteFile(listFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(listFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is out of date; run go test -run TestListOfChecks -update (-want +got):\n%s", listFile, diff)
	}
}

func TestChecksAreWellFormed(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range allChecks() {
		kinds := 0
		for _, set := range []bool{c.once != nil, c.each != nil, c.refused != nil, c.storage != nil} {
			if set {
				kinds++
			}
		}
		switch {
		case seen[c.name]:
			t.Errorf("two checks are named %s", c.name)
		case strings.Count(c.name, "/") != 1:
			t.Errorf("%s is no group/name", c.name)
		case !strings.HasSuffix(c.proves, "."):
			t.Errorf("%s: %q is no sentence", c.name, c.proves)
		case kinds != 1:
			t.Errorf("%s has %d functions, want one", c.name, kinds)
		}
		seen[c.name] = true
	}
}

func TestSuiteMistakes(t *testing.T) {
	working := []Case{{Name: "a", Spec: Inline(v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})}}
	refused := RefusedCase{Name: "r", Spec: working[0].Spec, Because: "it"}
	because := refused
	because.Because = ""
	far := working[0]
	far.NoKernel = "no server"
	waiver := func(change func(*Waiver)) Suite {
		w := Waiver{Check: "lifecycle/setup", Reason: "known"}
		change(&w)
		return Suite{Working: working, Refused: []RefusedCase{refused}, Waivers: []Waiver{w}}
	}
	tests := map[string]struct {
		suite Suite
		want  string // empty: no mistake
	}{
		"good":             {waiver(func(w *Waiver) { w.Case, w.On = "a", "kernel" }), ""},
		"no case":          {Suite{}, "no working case"},
		"no name":          {Suite{Working: []Case{{Spec: working[0].Spec}}}, "no name"},
		"same name":        {Suite{Working: append(working, working...)}, `two cases are named "a"`},
		"no spec":          {Suite{Working: []Case{{Name: "a"}}}, "no Spec"},
		"waived unknown":   {waiver(func(w *Waiver) { w.Check = "lifecycle/none" }), `check "lifecycle/none", which does not exist`},
		"waived no reason": {waiver(func(w *Waiver) { w.Reason = "" }), "no reason"},
		"waived case":      {waiver(func(w *Waiver) { w.Case = "b" }), `case "b", which the suite does not have`},
		"waived place":     {waiver(func(w *Waiver) { w.On = "moon" }), `restricted to "moon"`},
		"update alone":     {Suite{Working: []Case{{Name: "a", Spec: working[0].Spec, Update: func(*Node) {}}}}, "both Update and Updated"},
		"no because":       {Suite{Working: working, Refused: []RefusedCase{because}}, "has no Because"},
		"waived on a kernel for the fake only": {waiver(func(w *Waiver) { w.Check, w.On = "contract/init", "kernel" }),
			`on "kernel", where it never runs`},
		"waived on a kernel without one": {Suite{Working: []Case{far}, Waivers: []Waiver{{Check: "lifecycle/setup", On: "kernel", Reason: "known"}}},
			"where it never runs"},
		"waived without capability": {waiver(func(w *Waiver) { w.Check = "device/mount" }), "never runs: the plugin is no "},
		"waived for a refused case": {waiver(func(w *Waiver) { w.Case = "r" }), `for case "r" on "", where it never runs`},
		"waived for a working case": {waiver(func(w *Waiver) { w.Check, w.Case = "contract/refused", "a" }), "where it never runs"},
		"waived for a case of none": {waiver(func(w *Waiver) { w.Check, w.Case = "contract/init", "a" }), "where it never runs"},
		"waived without refused":    {Suite{Working: working, Waivers: []Waiver{{Check: "contract/refused", Reason: "known"}}}, "where it never runs"},
		"waived twice": {Suite{Working: working, Waivers: []Waiver{{Check: "lifecycle/setup", Reason: "known"},
			{Check: "lifecycle/setup", Case: "a", On: "fake", Reason: "known"}}}, "waived twice"},
		"storage alone":   {Suite{Working: working, Storage: []StorageCase{{Name: "s"}}}, "no ProvisionableVolumePlugin"},
		"storage unnamed": {Suite{Working: working, Storage: []StorageCase{{}}}, "no name"},
		"waived apart": {Suite{Working: working, Waivers: []Waiver{{Check: "lifecycle/setup", On: "kernel", Reason: "known"},
			{Check: "lifecycle/setup", On: "fake", Reason: "known"}}}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := tc.suite.check(allChecks(), &note{})
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("err = %v, want %q", err, tc.want)
			}
		})
	}
}
