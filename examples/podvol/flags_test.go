package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// every calls f for a command and those below it.
func every(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		every(sub, f)
	}
}

// What cannot be a node's name is refused by each command that takes one, and in
// manifests.
func TestNamesOfNodesAreThoseOfTheAPI(t *testing.T) {
	seen := 0
	every(rootCommand(streams{}), func(c *cobra.Command) {
		flag := c.Flags().Lookup("node")
		if flag == nil {
			return
		}
		seen++
		for name, valid := range map[string]bool{"": true, "a": true, "node-1.example.com": true, "A_b": false, "Node1": false, "-a": false, "a/b": false, strings.Repeat("a", 254): false} {
			if err := flag.Value.Set(name); (err == nil) != valid {
				t.Errorf("%s --node %q: %v", c.CommandPath(), name, err)
			}
		}
	})
	if seen < 8 {
		t.Errorf("%d commands have --node", seen)
	}
	root := filepath.Join(t.TempDir(), "root")
	file := manifestFile(t, podNamed("a", disk))
	if _, errOut := mustPodvol(t, exitUsage, "mount", "--fake", "-f", file, "--node", "A_b", "--root-dir", root); !strings.Contains(errOut, `"A_b"`) || !strings.Contains(errOut, "lower case") {
		t.Errorf("stderr: %s", errOut)
	}
	named := manifestFile(t, strings.Replace(podNamed("a", disk), "spec:", "spec:\n  nodeName: A_b", 1))
	if _, errOut := mustPodvol(t, exitUsage, "mount", "--fake", "-f", named, "--root-dir", root); !strings.Contains(errOut, "spec.nodeName") {
		t.Errorf("stderr: %s", errOut)
	}
}
