package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// result is one test, in Ginkgo's report.
type result struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	RunTime                 time.Duration
	Failure                 struct {
		Message  string
		Location struct {
			FileName   string
			LineNumber int
		}
	}
}

// The states that count. All others are failures.
const (
	passed  = "passed"
	skipped = "skipped"
	pending = "pending"
)

func (r result) name() string {
	return strings.Join(append(r.ContainerHierarchyTexts[:len(r.ContainerHierarchyTexts):len(r.ContainerHierarchyTexts)], r.LeafNodeText), " ")
}

// isTest tells tests from what runs around all of them.
func (r result) isTest() bool { return r.LeafNodeType == "It" }

// reason is why a test has not passed, in one line.
func (r result) reason() string {
	const most = 300
	said := strings.Join(strings.Fields(r.Failure.Message), " ")
	if len(said) > most {
		said = said[:most] + "…"
	}
	if r.Failure.Location.FileName != "" {
		said += fmt.Sprintf(" (%s:%d)", r.Failure.Location.FileName, r.Failure.Location.LineNumber)
	}
	return said
}

// readResults reads Ginkgo's report in JSON: the tests that were selected, by name, and
// what has failed around them.
func readResults(r io.Reader) ([]result, error) {
	var reports []struct{ SpecReports []result }
	if err := json.NewDecoder(r).Decode(&reports); err != nil {
		return nil, fmt.Errorf("the tests' report: %w", err)
	}
	var results []result
	for _, report := range reports {
		for _, r := range report.SpecReports {
			notSelected := r.State == skipped && r.Failure.Message == ""
			if r.isTest() && !notSelected || !r.isTest() && r.State != passed && !notSelected {
				results = append(results, r)
			}
		}
	}
	slices.SortStableFunc(results, func(a, b result) int { return cmp.Compare(a.name(), b.name()) })
	return results, nil
}

// showResults prints a line for each test, and returns an error if one has failed, or
// none has run.
func showResults(w io.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("the tests left no report: %w", err)
	}
	defer file.Close()
	results, err := readResults(file)
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, r := range results {
		state := r.State
		switch state {
		case passed:
			fmt.Fprintf(w, "passed  %5.1f s  %s\n", r.RunTime.Seconds(), r.name())
		case skipped, pending:
			fmt.Fprintf(w, "%s           %s: %s\n", state, r.name(), r.reason())
		default:
			state = "failed"
			fmt.Fprintf(w, "failed  %5.1f s  %s: %s\n", r.RunTime.Seconds(), cmp.Or(r.name(), r.LeafNodeType), r.reason())
		}
		count[state]++
	}
	fmt.Fprintf(w, "%d tests: %d passed, %d failed, %d skipped\n", len(results), count[passed], count["failed"], count[skipped]+count[pending])
	switch {
	case count["failed"] > 0:
		return fmt.Errorf("%d of %d tests have failed", count["failed"], len(results))
	case count[passed] == 0:
		return fmt.Errorf("no test has passed")
	}
	return nil
}
