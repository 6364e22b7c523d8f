package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// part is one of several parts of the tests, counted from 1. The zero part is all.
type part struct{ Number, Of int }

// String is as Set takes it.
func (p *part) String() string {
	if p.Of == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", p.Number, p.Of)
}

// Set reads "3/12". [flag.Value] asks for it.
func (p *part) Set(value string) error {
	number, of, found := strings.Cut(value, "/")
	var errs [2]error
	p.Number, errs[0] = strconv.Atoi(number)
	p.Of, errs[1] = strconv.Atoi(of)
	if !found || errs != [2]error{} || p.Number < 1 || p.Number > p.Of {
		return fmt.Errorf("a part is such as 3/12")
	}
	return nil
}

// choose returns the names of the part: each part has tests of all kinds, since they
// are dealt out like cards.
func (p *part) choose(names []string) []string {
	if p.Of == 0 {
		return names
	}
	var chosen []string
	for i, name := range names {
		if i%p.Of == p.Number-1 {
			chosen = append(chosen, name)
		}
	}
	return chosen
}

// runTests runs the tests, or the command in their place.
func runTests(ctx context.Context, o options) error {
	if len(o.Command) > 0 {
		cmd := inCluster(ctx, o, o.Command[0], o.Command[1:]...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		return cmd.Run()
	}
	names, err := selected(ctx, o)
	if err != nil {
		return err
	}
	patterns := make([]string, len(names))
	for i, name := range names {
		patterns[i] = " " + regexp.QuoteMeta(name) + "$" // the suite's own name comes before it
	}
	fmt.Printf("%d tests, %d at a time\n", len(names), o.Parallel)
	log, err := os.Create(base + "/e2e.log")
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"--focus=" + strings.Join(patterns, "|"), fmt.Sprintf("--procs=%d", o.Parallel), "--timeout=6h", "--no-color", "--json-report=" + o.Results, "--output-dir=" + base,
		filepath.Join(o.Assets, "e2e.test"), "--", "--kubeconfig=" + admin, "--provider=skeleton", "--node-os-distro=custom",
		"--allowed-not-ready-nodes=0", "--dump-logs-on-failure=false", "--disable-log-dump", "--report-dir=" + base + "/reports"}
	cmd := inCluster(ctx, o, "ginkgo", args...)
	cmd.Dir = base
	cmd.Stdout, cmd.Stderr = log, log
	if o.Verbose {
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	}
	err = cmd.Run()
	if _, is := errors.AsType[*exec.ExitError](err); is && ctx.Err() == nil {
		return o.judge(io.Discard, filepath.Join(base, o.Results)) // some fail that are known to
	}
	return err
}

// judge prints the tests' results, and returns an error unless all are as the list says.
func (o options) judge(w io.Writer, report string) error {
	list, err := parseKnown(o.Failing)
	if err != nil {
		return err
	}
	return showResults(w, report, list, o.Kinds)
}

// selected asks the tests for the names of those that are meant.
func selected(ctx context.Context, o options) ([]string, error) {
	const list = base + "/list.json"
	args := []string{"--ginkgo.dry-run", "--ginkgo.json-report=" + list, "--ginkgo.label-filter=" + o.Labels, "--provider=skeleton", "--kubeconfig=" + admin}
	for flag, pattern := range map[string]string{"focus": o.Focus, "skip": o.Skip} {
		if pattern != "" {
			args = append(args, "--ginkgo."+flag+"="+pattern)
		}
	}
	if _, err := quietly(inCluster(ctx, o, "e2e.test", args...)); err != nil {
		return nil, err
	}
	reports, err := readReports(list)
	if err != nil {
		return nil, err
	}
	if err := o.checkFailing(reports); err != nil {
		return nil, err
	}
	var names []string
	for _, r := range results(reports) {
		if r.isTest() && r.State != pending {
			names = append(names, r.name())
		}
	}
	if names = o.Part.choose(names); len(names) == 0 {
		return nil, fmt.Errorf("no test is meant")
	}
	return names, nil
}

// checkFailing returns an error if the list of failing tests names some that do not exist.
func (o options) checkFailing(reports []report) error {
	list, err := parseKnown(o.Failing)
	if err != nil {
		return err
	}
	var names []string
	for _, report := range reports {
		for _, r := range report.SpecReports {
			names = append(names, r.name())
		}
	}
	return stale(list, names)
}
