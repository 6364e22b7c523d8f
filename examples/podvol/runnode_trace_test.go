package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/examples/podvol/internal/tracefile"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// Its lines tell how each operation ended, by the paths that the user knows.
func TestRunNodeTracesItsOperations(t *testing.T) {
	trace, root := filepath.Join(t.TempDir(), "trace"), filepath.Join(t.TempDir(), "root")
	n := runInProcess(t, t.TempDir(), root, "--fake", "--trace-file", trace)
	n.put("a.yaml", podNamed("a", "{name: memory, emptyDir: {medium: Memory}}, {name: bad, configMap: {name: missing}}"))
	n.become(map[string]string{"memory": "mounted", "bad": "failed"})
	if _, errOut := mustPodvol(t, exitUsage, "run-node", "-f", t.TempDir(), "--fake", "--trace-file", trace); !strings.Contains(errOut, "another process writes "+trace) {
		t.Errorf("a second one said %s", errOut)
	}
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

// A line in the directory of manifests would be read as one, and each as a change.
func TestRunNodeTracesElsewhere(t *testing.T) {
	dir, link, below := t.TempDir(), filepath.Join(t.TempDir(), "link"), filepath.Join(t.TempDir(), "below")
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	must(t, os.Symlink(dir, link))
	must(t, os.Symlink(filepath.Join(dir, "sub"), below))
	for _, trace := range []string{filepath.Join(dir, "trace.json"), filepath.Join(link, "trace"), below + "/../trace"} {
		_, errOut := mustPodvol(t, exitUsage, "run-node", "-f", dir, "--fake", "--trace-file", trace)
		if !strings.Contains(errOut, trace+" is in the directory of manifests") {
			t.Errorf("it said %s", errOut)
		}
		if _, err := os.Lstat(trace); err == nil {
			t.Errorf("%s is made", trace)
		}
	}
}

// Nothing is wrong with the words of a command whose disk is full.
func TestAFullDiskIsNoWrongCommandLine(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		disk := t.TempDir()
		must(t, unix.Mount("none", disk, "tmpfs", 0, "size=64k,nr_inodes=2"))
		defer unix.Unmount(disk, unix.MNT_DETACH)
		must(t, os.WriteFile(filepath.Join(disk, "last"), nil, 0o600))
		file := manifestFile(t, podNamed("a", "{name: labels, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}"))
		for _, args := range [][]string{
			{"run-node", "-f", t.TempDir(), "--fake", "--trace-file", filepath.Join(disk, "trace")},
			{"render", "-f", file, "-o", "dir", "--to", disk},
			{"mount", "-f", file, "--root-dir", filepath.Join(disk, "root")},
		} {
			if _, errOut := mustPodvol(t, exitFailed, args...); !strings.Contains(errOut, "no space left on device") {
				t.Errorf("%v: it said %s", args, errOut)
			}
		}
	})
}
