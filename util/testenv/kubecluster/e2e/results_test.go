package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const ofGinkgo = `[{"SpecReports": [
{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-storage] Secrets", "in a volume"], "LeafNodeText": "are read", "State": "passed", "RunTime": 1500000000},
{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeText": "not selected", "State": "skipped"},
{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-storage] NFS"], "LeafNodeText": "asks for modules", "State": "skipped", "Failure": {"Message": "no module"}},
{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-storage] ConfigMap"], "LeafNodeText": "is shown", "State": "timedout",
 "Failure": {"Message": "too\n  late", "Location": {"FileName": "map.go", "LineNumber": 7}}}
]}]`

func shown(t *testing.T, report string, list ...known) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "results.json")
	if err := os.WriteFile(path, []byte(report), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err := showResults(&out, path, list, []string{"virtualkubelet"})
	return out.String(), err
}

func TestResultsAreShownWithTheirReasons(t *testing.T) {
	out, err := shown(t, ofGinkgo)
	want := `failed    0.0 s  [sig-storage] ConfigMap is shown: too late (map.go:7)
skipped   0.0 s  [sig-storage] NFS asks for modules: no module
passed    1.5 s  [sig-storage] Secrets in a volume are read
3 tests: 1 passed, 1 failed, 0 known to fail, 0 known to fail but passed, 1 skipped
`
	if out != want {
		t.Errorf("it shows\n%swant\n%s", out, want)
	}
	if err == nil || !strings.Contains(err.Error(), "1 of 3") {
		t.Errorf("err = %v", err)
	}
}

func TestKnownFailuresAreNone(t *testing.T) {
	list, err := parseKnown("# comment\n\nvirtualkubelet ConfigMap is shown$\n  the world is flat\n")
	if err != nil {
		t.Fatal(err)
	}
	out, err := shown(t, ofGinkgo, list...)
	if err != nil || !strings.Contains(out, "known     0.0 s  [sig-storage] ConfigMap is shown: the world is flat\n") {
		t.Errorf("err = %v, and it shows\n%s", err, out)
	}
	list[0].node = "kubelet"
	if out, err := shown(t, ofGinkgo, list...); err == nil {
		t.Errorf("what fails on other nodes only is no failure: it shows\n%s", out)
	}
}

func TestAKnownFailureThatPassesIsOne(t *testing.T) {
	list, err := parseKnown("any ConfigMap\n\tone\nany are read$\n\ttwo\nany NFS\n\tthree")
	if err != nil {
		t.Fatal(err)
	}
	out, err := shown(t, ofGinkgo, list...)
	if err == nil || !strings.Contains(out, "PASSED    1.5 s  [sig-storage] Secrets in a volume are read: but it is listed: two\n") {
		t.Errorf("err = %v, and it shows\n%s", err, out)
	}
}

func TestTestsThatWereNotDoneAreAFailure(t *testing.T) {
	out, err := shown(t, `[{"SpecialSuiteFailureReasons": ["Suite Timeout Elapsed"], "SpecReports": [{"LeafNodeType": "It", "LeafNodeText": "x", "State": "passed"}]}]`)
	if err == nil || !strings.Contains(err.Error(), "Elapsed") {
		t.Errorf("err = %v, and it shows\n%s", err, out)
	}
}

func TestListsOfFailingTests(t *testing.T) {
	for _, list := range []string{"any x", "  a reason", "any x\n a\n b", "any (\n a", "any x\nany y\n a", "all x\n a"} {
		if known, err := parseKnown(list); err == nil {
			t.Errorf("%q is read as %v", list, known)
		}
	}
	list, err := parseKnown("any gone$\n  it was")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stale(list, []string{"b", "is gone"}), stale(nil, nil)); err != nil {
		t.Error(err)
	}
	if err := stale(list, []string{"gone away"}); err == nil {
		t.Error("a pattern that names no test is no error")
	}
}

func TestTheListHereIsWhole(t *testing.T) {
	content, err := os.ReadFile(filepath.Base(failingTests))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseKnown(string(content)); err != nil {
		t.Error(err)
	}
}

func TestAFailureAroundTheTestsIsOne(t *testing.T) {
	out, err := shown(t, `[{"SpecReports": [{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no nodes"}},
{"LeafNodeType": "It", "LeafNodeText": "x", "State": "passed"}]}]`)
	if err == nil || !strings.Contains(out, "SynchronizedBeforeSuite: no nodes") {
		t.Errorf("err = %v, and it shows\n%s", err, out)
	}
}

func TestNoTestAtAllIsAFailure(t *testing.T) {
	if out, err := shown(t, `[{"SpecReports": [{"LeafNodeType": "It", "LeafNodeText": "x", "State": "skipped"}]}]`); err == nil {
		t.Errorf("it shows\n%s", out)
	}
	if err := showResults(&strings.Builder{}, filepath.Join(t.TempDir(), "missing"), nil, nil); err == nil {
		t.Error("a missing report is no failure")
	}
}
