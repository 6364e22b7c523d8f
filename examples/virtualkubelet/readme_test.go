package main

import (
	"flag"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The commands that the page for kubelet authors and the documentation of the package
// show have the flags that they show.
func TestShownCommandsExist(t *testing.T) {
	for path, want := range map[string]int{"README.md": 1, "main.go": 3} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		shown := regexp.MustCompile(`(?m)^(?://\t|go run -C examples \./)virtualkubelet (--.*)$`).FindAllStringSubmatch(string(text), -1)
		if len(shown) != want {
			t.Errorf("%s shows the command %d times", path, len(shown))
		}
		for _, command := range shown {
			var c config
			set := flag.NewFlagSet("virtualkubelet", flag.ContinueOnError)
			set.SetOutput(io.Discard)
			kubeconfig := c.flags(set)
			if err := set.Parse(strings.Fields(command[1])); err != nil || set.NArg() > 0 || c.name != "hand" || *kubeconfig != "~/.kube/config" {
				t.Errorf("%s shows %q: %v, left %q, node %q, kubeconfig %q", path, command[0], err, set.Args(), c.name, *kubeconfig)
			}
		}
	}
}
