package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/figures"
)

// buildFlags are those that the documentation recommends for the command.
var buildFlags = []string{"-tags=grpcnotrace", "-ldflags=-s -w"}

// TestStartFigures measures what the command costs before it does anything: its size, its
// start, and a build of an adopter's program with nothing compiled.
//
//	PODVOL_ASSERT_FIGURES=1 go test -C examples ./podvol -run StartFigures -v
//
// The limits of the size and the start are those of the command before it knew CSI.
func TestStartFigures(t *testing.T) {
	_, asserted := figures.Slack(t)
	dir, rootDir := t.TempDir(), t.TempDir()
	run := func(args ...string) func() {
		return func() {
			cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
			cmd.Env = append(os.Environ(), mainVar+"=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
	}
	podvol, nothing := "/proc/self/exe", filepath.Join(dir, "nothing")
	goBuild(t, nil, program(t, dir), nothing)
	peers := []figures.Way{{Name: "a Go program that does nothing", Run: run(nothing)}}
	if asserted {
		podvol = filepath.Join(dir, "podvol")
		goBuild(t, nil, ".", podvol, buildFlags...)
		info, err := os.Stat(podvol)
		if err != nil {
			t.Fatal(err)
		}
		figures.Report(t, figures.Row{What: "the command, stripped", Unit: figures.Bytes, Ours: float64(info.Size()), Limit: 23.3e6})
		coldBuild(t)
		same := filepath.Join(dir, "same")
		goBuild(t, nil, program(t, dir, dependencies(t)...), same, buildFlags...)
		peers = append(peers, figures.Way{Name: "a program of the same libraries that does nothing", Run: run(same)})
	}
	took := figures.InTurn(t, 21, append(peers, figures.Way{Name: "podvol", Run: run(podvol, "status", "--root-dir", rootDir)})...)
	const what = "podvol status of a node without volumes"
	ours := took["podvol"].Median
	figures.Report(t, figures.Row{What: what, Unit: figures.CPU, Ours: ours.Children.Seconds(), Limit: 0.0065})
	for _, peer := range peers {
		theirs := took[peer.Name].Median
		figures.Report(t,
			figures.Times(what, figures.CPU, ours.Children, peer.Name, theirs.Children, 0),
			figures.Times(what, figures.Wall, ours.Wall, peer.Name, theirs.Wall, 0))
	}
}

// coldBuild builds a program of an adopter, a kubelet of their own, with nothing compiled. It
// builds first the libraries that no such program can do without, since the types of a pod are
// in them. They were two thirds of it when the limit was set, podvol's own packages a quarter.
func coldBuild(t *testing.T) {
	t.Helper()
	dir, env := t.TempDir(), []string{"GOCACHE=" + t.TempDir()}
	libraries := program(t, dir, "k8s.io/api/core/v1", "k8s.io/api/storage/v1", "k8s.io/apimachinery/pkg/apis/meta/v1", "k8s.io/mount-utils", "sigs.k8s.io/yaml")
	theirs := figures.Take(t, func() { goBuild(t, env, libraries, filepath.Join(dir, "libraries")) }).Children
	rest := figures.Take(t, func() { goBuild(t, env, "../customkubelet", filepath.Join(dir, "kubelet")) }).Children
	figures.Report(t, figures.Times("an adopter's program, built with nothing compiled", figures.CPU, theirs+rest,
		"k8s.io/api, apimachinery and mount-utils alone", theirs, 1.6))
}

// goBuild builds a package, or a file.
func goBuild(t *testing.T, env []string, source, output string, flags ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append(append([]string{"build"}, flags...), "-o", output, source)...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// program writes a program that does nothing, with some packages, and returns its path.
func program(t *testing.T, dir string, packages ...string) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("package main\n\n")
	for _, path := range packages {
		fmt.Fprintf(&text, "import _ %q\n", path)
	}
	text.WriteString("\nfunc main() {}\n")
	path := filepath.Join(dir, fmt.Sprintf("with%d.go", len(packages)))
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// dependencies are the packages of others that the command is built with.
func dependencies(t *testing.T) (found []string) {
	t.Helper()
	for _, p := range built(t) {
		path, _, _ := strings.Cut(p, " ")
		if domain, _, _ := strings.Cut(path, "/"); strings.Contains(domain, ".") && !strings.HasPrefix(path, "github.com/podvol/") && !strings.Contains(path+"/", "/internal/") {
			found = append(found, path)
		}
	}
	return found
}
