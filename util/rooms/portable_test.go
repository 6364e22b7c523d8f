package rooms

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// portable are packages that build for every system, because programs that mount
// nothing use them: they read a volume's files as bytes, or check manifests.
func portable() []string {
	return []string{
		"volume", "volume/claimbinding", "volume/containerenv", "volume/fileset", "volume/internal/downward", "volume/internal/payload", "volume/objects", "volume/objects/manifest", "volume/podfiles",
		"volume/validation",
	}
}

// portableByTags are packages that build for every system, too, but have files of their
// own for Linux. Elsewhere a call that needs Linux, or a Unix, is [errors.ErrUnsupported].
func portableByTags() []string {
	return []string{"volume/atomicdir", "volume/containermounts", "volume/objects/cluster", "volume/objects/localtoken"}
}

func TestPortablePackages(t *testing.T) {
	var paths []string
	for _, path := range portable() {
		paths = append(paths, module+"/"+path)
	}
	for _, p := range goList(t, append([]string{"-deps"}, paths...)...) {
		if path, ours := inModule(p.ImportPath); ours && strings.HasPrefix(path+"/", "mount/") || slices.Contains(p.Imports, "golang.org/x/sys/unix") && ours {
			t.Errorf("%s is needed by a package for every system; it is for Linux", path)
		}
	}
	want := append(portable(), portableByTags()...)
	slices.Sort(want)
	if got := lookedAt(t); !slices.Equal(got, want) {
		t.Errorf("other_systems in .ci/lib looks at\n%q, and portable and portableByTags have\n%q", got, want)
	}
}

// lookedAt returns the packages of this module that .ci/lib builds or vets for other systems.
func lookedAt(t *testing.T) []string {
	t.Helper()
	gate, err := os.ReadFile("../../.ci/lib")
	if err != nil {
		t.Fatal(err)
	}
	_, function, _ := strings.Cut(string(gate), "\nother_systems() {\n")
	function, _, _ = strings.Cut(function, "\n}\n")
	var paths []string
	for _, m := range regexp.MustCompile(`\s\./(\S+)`).FindAllStringSubmatch(regexp.MustCompile(`.*-C examples.*`).ReplaceAllString(function, ""), -1) {
		paths = append(paths, m[1])
	}
	slices.Sort(paths)
	return paths
}

// A set of files is described, and written into a directory, without anything of Kubernetes:
// programs that have none of it use these packages, too.
func TestFileSetsNeedNoKubernetes(t *testing.T) {
	for _, p := range goList(t, "-deps", module+"/volume/atomicdir", module+"/volume/fileset") {
		if _, ours := inModule(p.ImportPath); !ours && strings.Contains(p.ImportPath, ".") && !strings.HasPrefix(p.ImportPath, "golang.org/x/sys") && !p.Standard {
			t.Errorf("they are built with %s", p.ImportPath)
		}
	}
}

// adopters are the packages that agents import by themselves, and what each may link: modules,
// and packages that are neither podvol's nor the standard library's, beyond those of
// k8s.io/api/core/v1. The numbers only shrink.
func adopters() map[string]struct{ modules, packages int } {
	return map[string]struct{ modules, packages int }{
		"volume/fileset":       {modules: 0},
		"volume/atomicdir":     {modules: 1, packages: 1}, // golang.org/x/sys/unix
		"volume/podfiles":      {modules: 21, packages: 13},
		"volume/containerenv":  {modules: 21, packages: 10},
		"volume/volumemanager": {modules: 21, packages: 14},
	}
}

func TestWhatAdoptersLink(t *testing.T) {
	base := make(map[string]bool)
	for _, p := range goList(t, "-deps", "k8s.io/api/core/v1") {
		base[p.ImportPath] = true
	}
	for path, most := range adopters() {
		modules := make(map[string]bool)
		packages := 0
		for _, p := range goList(t, "-deps", module+"/"+path) {
			if _, ours := inModule(p.ImportPath); ours || p.Standard {
				continue
			}
			modules[p.Module.Path] = true
			if !base[p.ImportPath] {
				packages++
			}
		}
		t.Logf("%s links %d modules, and %d packages beyond those of k8s.io/api/core/v1", path, len(modules), packages)
		if len(modules) > most.modules || packages > most.packages {
			t.Errorf("%s links %d modules and %d packages beyond k8s.io/api/core/v1, of at most %d and %d", path, len(modules), packages, most.modules, most.packages)
		}
	}
}

// What importers are given: a program that imports one package of podvol has all the modules
// of this go.mod in its module graph, and cannot have an older one of any of them. What
// only the examples need is in their own go.mod. Three of them came with CSI, whose
// drivers speak gRPC: its specification, gRPC itself, and the status codes' module. They
// are in the graph only; TestModulesOffTheCore shows who is built with them. One has the
// tables by which volumes of the in-tree cloud plugins become those of drivers. One, which
// needs no other, decompresses the layers of images (zstd is not in the standard library).
// The number only shrinks.
const maxModulesOfImporters = 61

func TestModuleGraphOfImporters(t *testing.T) {
	for _, path := range []string{"volume/podfiles", "volume/volumemanager"} {
		graph := moduleGraph(t, importer(t, path))
		t.Logf("an importer of %s has %d modules in its graph", path, len(graph))
		if len(graph) > maxModulesOfImporters {
			t.Errorf("an importer of %s has %d modules in its graph, of at most %d: %v", path, len(graph), maxModulesOfImporters, graph)
		}
		for _, ofExamples := range []string{"github.com/virtual-kubelet/virtual-kubelet", "github.com/spf13/cobra", "github.com/prometheus/client_golang"} {
			if slices.Contains(graph, ofExamples) {
				t.Errorf("an importer of %s has %s in its graph, which only examples use", path, ofExamples)
			}
		}
	}
}

// importer returns the directory of a program that imports a package of this module.
func importer(t *testing.T, path string) string {
	t.Helper()
	dir := t.TempDir()
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(top, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"go.mod":  fmt.Sprintf("module importer\n\ngo 1.26.0\n\nrequire %s v0.0.0\n\nreplace %[1]s => %s\n", module, top),
		"go.sum":  string(sums),
		"main.go": fmt.Sprintf("package main\n\nimport _ %q\n\nfunc main() {}\n", module+"/"+path),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// moduleGraph returns the paths of the modules that go mod graph names, but for the main one.
func moduleGraph(t *testing.T, dir string) []string {
	t.Helper()
	command := exec.Command("go", "mod", "graph")
	command.Dir = dir
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	modules := make(map[string]bool)
	for line := range strings.Lines(string(out)) {
		_, required, _ := strings.Cut(strings.TrimSpace(line), " ")
		if path, _, _ := strings.Cut(required, "@"); path != module && path != "go" && path != "toolchain" {
			modules[path] = true
		}
	}
	return slices.Sorted(maps.Keys(modules))
}
