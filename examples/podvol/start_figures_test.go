package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/util/testenv/figures"
)

// TestStartFigures measures what the command costs before it does anything: its size, its
// start beside that of a program that does nothing, and a build of an adopter's program
// with nothing compiled.
//
//	PODVOL_ASSERT_FIGURES=1 go test -C examples ./podvol -run StartFigures -v
//
// The limits are those of the command before it knew CSI.
func TestStartFigures(t *testing.T) {
	_, asserted := figures.Slack(t)
	dir := t.TempDir()
	build := func(pkg, output string, flags ...string) {
		cmd := exec.CommandContext(t.Context(), "go", append(append([]string{"build"}, flags...), "-o", output, pkg)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	nothing, podvol := filepath.Join(dir, "nothing"), "/proc/self/exe"
	source := filepath.Join(dir, "nothing.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	build(source, nothing)
	if asserted {
		podvol = filepath.Join(dir, "podvol")
		build(".", podvol, "-ldflags=-s -w")
		info, err := os.Stat(podvol)
		if err != nil {
			t.Fatal(err)
		}
		figures.Report(t, figures.Row{What: "the command, stripped", Unit: figures.Bytes, Ours: float64(info.Size()), Limit: 23.3e6})
		cold(t)
	}
	run := func(args ...string) func() {
		return func() {
			cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
			cmd.Env = append(os.Environ(), mainVar+"=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
	}
	took := figures.InTurn(t, 21, figures.Way{Name: "podvol", Run: run(podvol, "status", "--root-dir", dir)}, figures.Way{Name: "nothing", Run: run(nothing)})
	const what, peer = "podvol status of a node without volumes", "a Go program that does nothing"
	ours, theirs := took["podvol"].Median, took["nothing"].Median
	figures.Report(t,
		figures.Row{What: what, Unit: figures.CPU, Ours: ours.Children.Seconds(), Limit: 0.0065},
		figures.Times(what, figures.CPU, ours.Children, peer, theirs.Children, 0),
		figures.Times(what, figures.Wall, ours.Wall, peer, theirs.Wall, 0))
}

// cold builds a program of an adopter, a kubelet of their own, with nothing compiled.
func cold(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(t.TempDir(), "kubelet"), "../customkubelet")
	cmd.Env = append(os.Environ(), "GOCACHE="+t.TempDir())
	took := figures.Take(t, func() {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	figures.Report(t, figures.Row{What: "an adopter's program, built with nothing compiled", Unit: figures.CPU, Ours: took.Children.Seconds(), Limit: 62})
}
