package rooms

import (
	"os"
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
	gate, err := os.ReadFile("../../.ci/lib")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range portable() {
		if !regexp.MustCompile(`\./` + path + `\s`).Match(gate) {
			t.Errorf("other_systems in .ci/lib does not look at %s", path)
		}
	}
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
