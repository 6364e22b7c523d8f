package main

import (
	"cmp"
	"encoding/json"
	"errors"
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

// The states of a test by the list of failing tests.
const (
	failed     = "failed"
	expected   = "known"
	surprising = "PASSED" // but is listed
)

func (r result) name() string {
	return strings.Join(append(r.ContainerHierarchyTexts[:len(r.ContainerHierarchyTexts):len(r.ContainerHierarchyTexts)], r.LeafNodeText), " ")
}

// isTest reports whether this is a test, and not the set-up or teardown of all tests.
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

// verdict returns a test's state and the text to print after its name. known is the listed
// reason of its failure; empty: the test is not listed.
func (r result) verdict(known string) (state, said string) {
	switch r.State {
	case skipped, pending:
		return skipped, ": " + r.reason()
	case passed:
		if known == "" {
			return passed, ""
		}
		return surprising, ": but it is listed: " + known
	}
	if known == "" {
		return failed, ": " + r.reason()
	}
	return expected, ": " + known
}

// report is Ginkgo's report of a run.
type report struct {
	SpecReports                []result
	SpecialSuiteFailureReasons []string // of a run that was not done
}

// readReports reads Ginkgo's report in JSON, in which tests that were not selected are skipped.
func readReports(path string) ([]report, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the tests left no report: %w", err)
	}
	var reports []report
	if err := json.Unmarshal(content, &reports); err != nil {
		return nil, fmt.Errorf("the tests' report: %w", err)
	}
	return reports, nil
}

// results returns the selected tests, sorted by name, and the failures of their common set-up.
func results(reports []report) []result {
	var selected []result
	for _, report := range reports {
		for _, r := range report.SpecReports {
			notSelected := r.State == skipped && r.Failure.Message == ""
			if r.isTest() && !notSelected || !r.isTest() && r.State != passed && !notSelected {
				selected = append(selected, r)
			}
		}
	}
	slices.SortStableFunc(selected, func(a, b result) int { return cmp.Compare(a.name(), b.name()) })
	return selected
}

// showResults prints a line for each test. It returns an error if a test failed that is not
// listed, if a listed test passed, or if not all tests or none ran.
func showResults(w io.Writer, path string, list []known, kinds []string) error {
	reports, err := readReports(path)
	if err != nil {
		return err
	}
	all := results(reports)
	count := map[string]int{}
	for _, r := range all {
		reason := ""
		if r.isTest() {
			reason = reasonFor(list, kinds, r.name())
		}
		state, said := r.verdict(reason)
		count[state]++
		fmt.Fprintf(w, "%-7s %5.1f s  %s%s\n", state, r.RunTime.Seconds(), cmp.Or(r.name(), r.LeafNodeType), said)
	}
	fmt.Fprintf(w, "%d tests: %d passed, %d failed, %d known to fail, %d known to fail but passed, %d skipped\n",
		len(all), count[passed], count[failed], count[expected], count[surprising], count[skipped])
	for _, report := range reports {
		if reasons := report.SpecialSuiteFailureReasons; len(reasons) > 0 {
			err = errors.Join(err, fmt.Errorf("the tests were not done: %s", strings.Join(reasons, ", ")))
		}
	}
	switch wrong := count[failed] + count[surprising]; {
	case wrong > 0:
		err = errors.Join(err, fmt.Errorf("%d of %d tests have failed, or passed but are in the list of failing ones", wrong, len(all)))
	case count[passed]+count[expected] == 0:
		err = errors.Join(err, errors.New("no test has run"))
	}
	return err
}
