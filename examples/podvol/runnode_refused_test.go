package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// withNFSOptions adds to a pod's manifest that a volume shall have options.
func withNFSOptions(manifest, volume string) string {
	return strings.Replace(manifest, "namespace: shop}", "namespace: shop, annotations: {mount-options.podvol.io/"+volume+": hard}}", 1)
}

// A pod that a plugin does not understand is a fault of its file, and nothing to
// the other pods; what it has mounted from before stays.
func TestRunNodeIsNotEndedByOnePod(t *testing.T) {
	leaks(t)
	dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
	putManifest(t, dir, "bad.yaml", withNFSOptions(podNamed("bad", "{name: v, emptyDir: {}}"), "nosuch"))
	putManifest(t, dir, "good.yaml", podNamed("good", "{name: scratch, emptyDir: {}}"))
	n := runInProcess(t, dir, root, "--fake")
	if line := n.hears("nosuch"); !strings.Contains(line, "bad.yaml") || !strings.Contains(line, "Pod shop/bad") {
		t.Errorf("it said %q", line)
	}
	n.row("scratch", "mounted")
	n.hears("the manifests declare 1 volume of 1 pod; 1 file refused; pods in no manifest are kept")
	n.put("bad.yaml", podNamed("bad", "{name: v, emptyDir: {}}"))
	n.row("v", "mounted")
	if code := n.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
