package main

import (
	"flag"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The commands that the pages and the documentation of the package show have the flags that they show.
func TestShownCommandsExist(t *testing.T) {
	for _, page := range []struct {
		path             string
		commands         int
		node, kubeconfig string
	}{
		{"README.md", 1, "hand", "~/.kube/config"}, {"main.go", 3, "hand", "~/.kube/config"},
		{"HANDOVER.md", 1, "node1", "/etc/kubernetes/kubelet.conf"},
	} {
		text, err := os.ReadFile(page.path)
		if err != nil {
			t.Fatal(err)
		}
		whole := strings.ReplaceAll(string(text), "\\\n", "")
		shown := regexp.MustCompile(`(?m)^(?://\t|go run -C examples \./)?virtualkubelet (--.*)$`).FindAllStringSubmatch(whole, -1)
		if len(shown) != page.commands {
			t.Errorf("%s shows the command %d times", page.path, len(shown))
		}
		for _, command := range shown {
			var c config
			set := flag.NewFlagSet("virtualkubelet", flag.ContinueOnError)
			set.SetOutput(io.Discard)
			kubeconfig := c.flags(set)
			if err := set.Parse(strings.Fields(command[1])); err != nil || set.NArg() > 0 || c.name != page.node || *kubeconfig != page.kubeconfig {
				t.Errorf("%s shows %q: %v, left %q, node %q, kubeconfig %q", page.path, command[0], err, set.Args(), c.name, *kubeconfig)
			}
		}
	}
}
