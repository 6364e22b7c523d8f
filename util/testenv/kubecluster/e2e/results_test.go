package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const report = `[{"SpecReports": [
{"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-storage] Secrets", "in a volume"], "LeafNodeText": "are read", "State": "passed", "RunTime": 1500000000},
{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeText": "not selected", "State": "skipped"},
{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-storage] NFS"], "LeafNodeText": "asks for modules", "State": "skipped", "Failure": {"Message": "no module"}},
{"LeafNodeType": "It", "ContainerHierarchyTexts": ["[sig-storage] ConfigMap"], "LeafNodeText": "is shown", "State": "timedout",
 "Failure": {"Message": "too\n  late", "Location": {"FileName": "map.go", "LineNumber": 7}}}
]}]`

func shown(t *testing.T, report string) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "results.json")
	if err := os.WriteFile(path, []byte(report), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err := showResults(&out, path)
	return out.String(), err
}

func TestResultsAreShownWithTheirReasons(t *testing.T) {
	out, err := shown(t, report)
	want := `failed    0.0 s  [sig-storage] ConfigMap is shown: too late (map.go:7)
skipped           [sig-storage] NFS asks for modules: no module
passed    1.5 s  [sig-storage] Secrets in a volume are read
3 tests: 1 passed, 1 failed, 1 skipped
`
	if out != want {
		t.Errorf("it shows\n%swant\n%s", out, want)
	}
	if err == nil || !strings.Contains(err.Error(), "1 of 3") {
		t.Errorf("err = %v", err)
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
	if err := showResults(&strings.Builder{}, filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("a missing report is no failure")
	}
}
