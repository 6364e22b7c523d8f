package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// failingTests is the file that lists the tests that fail here, and why: see [parseKnown].
const failingTests = "util/testenv/kubecluster/e2e/failing.txt"

// known are tests that fail, and why.
type known struct {
	node    string // the program of the nodes that they fail on; empty: all
	pattern *regexp.Regexp
	reason  string
}

// parseKnown reads a list. A line is empty, a comment after "#", or names the program
// of the nodes ("any", "virtualkubelet", "kubelet") and a pattern of the tests' names.
// The indented line below is the reason.
func parseKnown(list string) ([]known, error) {
	var all []known
	for number, line := range strings.Split(list, "\n") {
		fault := func(what string) error { return fmt.Errorf("line %d of the list of failing tests: %s", number+1, what) }
		text := strings.TrimSpace(line)
		switch {
		case text == "" || strings.HasPrefix(text, "#"):
		case text != line:
			if len(all) == 0 || all[len(all)-1].reason != "" {
				return nil, fault("a reason without a pattern")
			}
			all[len(all)-1].reason = text
		default:
			node, text, _ := strings.Cut(text, " ")
			if node == "any" {
				node = ""
			} else if nodePrograms()[node] == nil {
				return nil, fault("there is no node " + node)
			}
			pattern, err := regexp.Compile(text)
			if err != nil {
				return nil, fault(err.Error())
			}
			all = append(all, known{node: node, pattern: pattern})
		}
	}
	for _, k := range all {
		if k.reason == "" {
			return nil, fmt.Errorf("the list of failing tests has no reason for %s", k.pattern)
		}
	}
	return all, nil
}

// reasonFor returns why a test is known to fail on one of these kinds of nodes, or an empty
// string.
func reasonFor(list []known, kinds []string, name string) string {
	for _, k := range list {
		if (k.node == "" || slices.Contains(kinds, k.node)) && k.pattern.MatchString(name) {
			return k.reason
		}
	}
	return ""
}

// stale returns an error if the list names tests that do not exist.
func stale(list []known, names []string) error {
	for _, k := range list {
		if !slices.ContainsFunc(names, k.pattern.MatchString) {
			return fmt.Errorf("the list of failing tests names none: %s", k.pattern)
		}
	}
	return nil
}
