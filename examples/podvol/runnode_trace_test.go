package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/examples/podvol/internal/tracefile"
)

// Its lines tell how each operation ended, by the paths that the user knows.
func TestRunNodeTracesItsOperations(t *testing.T) {
	trace, root := filepath.Join(t.TempDir(), "trace"), filepath.Join(t.TempDir(), "root")
	n := runInProcess(t, t.TempDir(), root, "--fake", "--trace-file", trace)
	n.put("a.yaml", podNamed("a", "{name: memory, emptyDir: {medium: Memory}}, {name: bad, configMap: {name: missing}}"))
	n.become(map[string]string{"memory": "mounted", "bad": "failed"})
	n.remove("a.yaml")
	n.row("memory", "unmounted")
	if code := n.stop(); code != exitOK {
		t.Fatalf("exit code %d; it said %q", code, n.heard())
	}
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "podvol-fake-") {
		t.Errorf("it names the temporary directory: %s", text)
	}
	found := make(map[string]tracefile.Span)
	for line := range strings.Lines(string(text)) {
		var s tracefile.Span
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		found[s.Step+" "+strings.Join(s.Volumes, ",")+" "+s.Outcome] = s
	}
	for _, want := range []string{"SetUp/plugin/mount memory ok", "SetUp memory ok", "SetUp bad error", "TearDown memory ok"} {
		if s := found[want]; s.Pod != "shop/a" || s.Node != "here" || s.DurationSeconds <= 0 {
			t.Errorf("%s: %+v, of %v", want, s, found)
		}
	}
}
