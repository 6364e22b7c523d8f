package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A provider's author writes at most 40 lines to have the volumes of all pods:
// volumes.go after its imports.
func TestVolumesTakeFewLines(t *testing.T) {
	source, err := os.ReadFile("volumes.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, found := strings.Cut(string(source), "\n)\n")
	if !found {
		t.Fatal("volumes.go has no imports")
	}
	lines := 0
	for line := range strings.Lines(code) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			lines++
		}
	}
	calls, files := 0, 0
	all, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if name == "volumes.go" || strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files++
		calls += len(regexp.MustCompile(`\bvolumes\.[A-Za-z]+\(|newVolumes\(`).FindAll(source, -1))
		for _, room := range []string{"volume/plugins", "volume/clusterhost", "volume/objects/cluster"} {
			if strings.Contains(string(source), `podvol/`+room+`"`) {
				t.Errorf("%s imports %s: that is volumes.go's business", name, room)
			}
		}
	}
	t.Logf("volumes.go has %d lines of code, and %d other files call it %d times", lines, files, calls)
	if lines > 40 {
		t.Errorf("volumes.go has %d lines of code, which are more than 40", lines)
	}
}
